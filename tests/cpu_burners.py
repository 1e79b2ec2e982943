"""Processes that want every CPU, for tests of what happens to those who have to share."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def burning(processes: int, cpus: set[int] | None = None) -> Iterator[None]:
    """So many endless loops, on these CPUs, until the block ends."""
    burners = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)
    ]
    try:
        for burner in burners:
            if cpus is not None:
                os.sched_setaffinity(burner.pid, cpus)
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def stand_back(process_id: int, niceness: int) -> None:
    """Gives all threads of a process this niceness, 19 the most."""
    for thread in Path(f"/proc/{process_id}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.setpriority(os.PRIO_PROCESS, int(thread.name), niceness)
