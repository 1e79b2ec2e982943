"""Seconds and ticks: the cores count time in released sequences, people in seconds."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

_MARK_SECONDS = 1.0  # that a mark stands for
NO_TICK = -1


class TickClock:
    """Remembers which tick it was when: one mark a second, of the last tick in it.

    The last `recent` marks are kept as they are; of those before, every second one is dropped
    whenever as many have come together again. So memory is bounded, and the error grows with
    the age of what is asked about.
    """

    def __init__(self, recent: int = 4096) -> None:
        self._recent = recent
        self._seconds: list[float] = []
        self._ticks: list[int] = []
        self._next_seconds = float("-inf")

    def note(self, now_seconds: float, tick: int) -> None:
        """It is this tick now. Cheap: call it at every release."""
        if now_seconds < self._next_seconds:
            self._seconds[-1], self._ticks[-1] = now_seconds, tick
            return
        self._next_seconds = now_seconds + _MARK_SECONDS
        self._seconds.append(now_seconds)
        self._ticks.append(tick)
        if len(self._ticks) >= 2 * self._recent:
            del self._seconds[1 : self._recent : 2], self._ticks[1 : self._recent : 2]

    def tick_at(self, seconds: float) -> int:
        """The last tick known to have passed by then; NO_TICK before the first mark."""
        place = bisect_right(self._seconds, seconds)
        return self._ticks[place - 1] if place else NO_TICK

    def seconds_at(self, ticks: NDArray[np.int64]) -> NDArray[np.float64]:
        """When it was these ticks, interpolated between marks. There must be a mark."""
        return np.interp(ticks, self._ticks, self._seconds)
