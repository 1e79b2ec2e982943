"""When a client that was refused should come back."""

from __future__ import annotations

_MIN_SECONDS = 0.1
_SMOOTHING = 0.1  # weight of the newest interval


class RetryHint:
    """Estimates how fast the queue empties from the intervals between admissions."""

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._last_seconds: float | None = None
        self._interval_seconds = 0.0

    def admitted(self, now_seconds: float, waiting: int) -> None:
        """A request left the queue; `waiting` are still in it.

        Only intervals in which somebody waited tell how fast the engine takes requests.
        """
        if self._last_seconds is not None:
            interval = now_seconds - self._last_seconds
            self._interval_seconds += _SMOOTHING * (interval - self._interval_seconds)
        self._last_seconds = now_seconds if waiting else None

    def seconds(self, waiting: int) -> float:
        """Time in which half of the queue should have been admitted."""
        return min(self._max_seconds, max(_MIN_SECONDS, self._interval_seconds * waiting / 2))
