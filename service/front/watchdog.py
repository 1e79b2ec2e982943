"""Looks at the pulse of an engine, and at what Linux says of it when it does not beat."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from service.engine.pulse import Pulse
from service.front.freeze import Activity, FreezeJudge

# A process that does nothing is noticed between one limit and an eighth of it later.
LOOKS_PER_LIMIT = 16

_CPU_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Watchdog:
    """Calls back once when a process is frozen.

    The time is counted in looks and not by the clock: a front that was itself stopped
    (SIGSTOP, a suspended machine) wakes up to one look more, not to a limit long past.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def start(
        self, pulse: Pulse, process_id: int, limit_seconds: float, on_frozen: Callable[[], None]
    ) -> None:
        """Begins to watch; a process that was watched before is forgotten."""
        self.stop()
        loop = asyncio.get_running_loop()
        interval_seconds = limit_seconds / LOOKS_PER_LIMIT
        judge = FreezeJudge(limit_seconds)

        def look() -> None:
            self._timer = loop.call_later(interval_seconds, look)
            if judge.progressed(pulse.beats):
                return
            try:
                activity = process_activity(process_id)
            except (FileNotFoundError, ProcessLookupError):
                self.stop()  # it is gone, which others notice
                return
            if judge.is_frozen(activity, interval_seconds):
                self.stop()
                on_frozen()

        self._timer = loop.call_later(interval_seconds, look)

    def stop(self) -> None:
        """Watches no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def process_activity(process_id: int) -> Activity:
    """What proc(5) tells; raises FileNotFoundError or ProcessLookupError if it is gone."""
    folder = Path(f"/proc/{process_id}")
    states = set()
    for thread in (folder / "task").iterdir():
        try:
            states.add(_stat_fields(thread)[0])
        except (FileNotFoundError, ProcessLookupError):
            continue  # this thread has ended
    user_ticks, system_ticks = _stat_fields(folder)[11:13]
    cpu_seconds = (int(user_ticks) + int(system_ticks)) / _CPU_TICKS_PER_SECOND
    return Activity("R" in states, cpu_seconds, waits_for_device="D" in states)


def _stat_fields(folder: Path) -> list[str]:
    """The fields from the state on; the name before them may hold spaces and brackets."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
