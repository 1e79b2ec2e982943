"""The least and the largest value of the last minute: scrapes are rarer than dips. Pure."""

from __future__ import annotations

from collections import deque


class LowWatermark:
    """The least value of a window of time.

    Keeps no value that a later one has undercut: those left rise, and the first is the least.
    """

    def __init__(self, window_seconds: float) -> None:
        self._window_seconds = window_seconds
        self._rising: deque[tuple[float, int]] = deque()  # time and value

    def add(self, now_seconds: float, value: int) -> int:
        """Takes the value of this moment; answers the least of the window that ends with it."""
        while self._rising and self._rising[-1][1] >= value:
            self._rising.pop()
        self._rising.append((now_seconds, value))
        while self._rising[0][0] < now_seconds - self._window_seconds:
            self._rising.popleft()
        return self._rising[0][1]


class HighWatermark:
    """The largest value of a window of time."""

    def __init__(self, window_seconds: float) -> None:
        self._low = LowWatermark(window_seconds)

    def add(self, now_seconds: float, value: int) -> int:
        """Takes the value of this moment; answers the largest of the window that ends with it."""
        return -self._low.add(now_seconds, -value)
