"""Notices that somebody who should speak has been silent for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_TICKS = 4


class SilenceWatch:
    """Calls back once when nothing was heard for a while in which this process was awake.

    The time is counted in a few ticks and not by the clock: a process that was itself
    stopped (SIGSTOP, a suspended machine) wakes up to one tick more, not to a deadline long
    past, and finds first what was said to it meanwhile. So the call comes between one limit
    and a quarter of it later. Hearing something costs no timer.
    """

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self._silent_ticks = 0

    def start(self, limit_seconds: float, on_silence: Callable[[], None]) -> None:
        """Begins to watch, or watches from now on with other terms."""
        self.stop()
        self._silent_ticks = 0
        loop = asyncio.get_running_loop()

        def tick() -> None:
            if self._silent_ticks == _TICKS:
                self._timer = None
                on_silence()
                return
            self._silent_ticks += 1
            self._timer = loop.call_later(limit_seconds / _TICKS, tick)

        self._timer = loop.call_later(limit_seconds / _TICKS, tick)

    def heard(self) -> None:
        """Something was said."""
        self._silent_ticks = 0

    def stop(self) -> None:
        """Watches no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
