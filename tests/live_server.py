"""A real `plimsoll serve` on free loopback ports, as a subprocess, for the tests."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

READY_LIMIT_SECONDS = 300.0


@dataclass(slots=True)
class LiveServer:
    """Addresses and processes of a running server."""

    process: subprocess.Popen[bytes]
    address: str
    admin_address: str
    metrics_address: str
    log: Path

    @property
    def front(self) -> psutil.Process:
        """The front process."""
        return psutil.Process(self.process.pid)

    @property
    def engine(self) -> psutil.Process:
        """The engine process that lives now."""
        for child in self.front.children():
            if "service.engine" in child.cmdline():
                return child
        raise LookupError(f"no engine process; log:\n{self.log.read_text()[-4000:]}")

    def wait_for_new_engine(self, old_pid: int, limit_seconds: float = 200.0) -> psutil.Process:
        """Waits until the supervisor has started a successor of `old_pid`."""
        give_up = time.monotonic() + limit_seconds
        while time.monotonic() < give_up:
            with contextlib.suppress(LookupError, psutil.NoSuchProcess):
                if (engine := self.engine).pid != old_pid:
                    return engine
            time.sleep(0.05)
        raise TimeoutError(f"no new engine; log:\n{self.log.read_text()[-4000:]}")


@contextlib.contextmanager
def serve(*flags: str) -> Iterator[LiveServer]:
    """Runs `plimsoll serve` with `flags` until the block ends; SIGTERM must end it with 0."""
    with tempfile.TemporaryDirectory(prefix="plimsoll-test-") as folder:
        ready, log = Path(folder, "ready"), Path(folder, "log")
        command = [sys.executable, "-m", "service.cli", "serve", "--port", "0"]
        command += ["--admin-port", "0", "--metrics-port", "0"]
        command += ["--ready-file", str(ready), *flags]
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            give_up = time.monotonic() + READY_LIMIT_SECONDS
            while not (ready.exists() and ready.read_text().endswith("\n")):
                if process.poll() is not None or time.monotonic() > give_up:
                    raise RuntimeError(f"server did not start:\n{log.read_text()[-4000:]}")
                time.sleep(0.05)
            yield LiveServer(process, *ready.read_text().split(), log)
            process.terminate()
            status = process.wait(120)
            assert status == 0, f"exit status {status}; log:\n{log.read_text()[-4000:]}"
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
