"""When a dead engine is started again, and when to give up."""

from __future__ import annotations

from collections import deque


class RestartPolicy:
    """Exponential back-off, counted over the restarts of a sliding window."""

    def __init__(
        self,
        delay_seconds: float,
        delay_max_seconds: float,
        limit: int,
        window_seconds: float,
    ) -> None:
        self._delay_seconds = delay_seconds
        self._delay_max_seconds = delay_max_seconds
        self._limit = limit
        self._window_seconds = window_seconds
        self._restarts: deque[float] = deque()

    def next_delay(self, now_seconds: float) -> float | None:
        """Pause before the next restart, which it counts; None: the limit is reached."""
        while self._restarts and now_seconds - self._restarts[0] >= self._window_seconds:
            self._restarts.popleft()
        recent = len(self._restarts)
        if recent >= self._limit:
            return None
        self._restarts.append(now_seconds)
        return min(self._delay_max_seconds, self._delay_seconds * 2.0**recent)
