"""When a dead engine is started again, and when to give up."""

from __future__ import annotations

import enum
from collections import deque


class EngineLife(enum.Enum):
    """What an engine was good for, from the last death to its own."""

    PROGRESS = "progress"  # a request got something
    EVIDENCE = "evidence"  # nobody did, but the search for a request that kills came on
    NOTHING = "nothing"


class RestartPolicy:
    """Exponential back-off, counted over the engines in a row that were good for nothing.

    Only those count that died within the window. An engine that computed something is not
    part of a crash loop, however often engines die; and the search for the request that
    kills them must not be given up while it comes on.
    """

    def __init__(
        self,
        delay_seconds: float,
        delay_max_seconds: float,
        limit: int,
        window_seconds: float,
    ) -> None:
        """`limit` 0: no engine is ever started again."""
        self._delay_seconds = delay_seconds
        self._delay_max_seconds = delay_max_seconds
        self._limit = limit
        self._window_seconds = window_seconds
        self._deaths: deque[float] = deque()

    def next_delay(self, now_seconds: float, life: EngineLife) -> float | None:
        """Pause before the restart after this death; None: the limit is reached."""
        if life is EngineLife.PROGRESS:
            self._deaths.clear()
        while self._deaths and now_seconds - self._deaths[0] >= self._window_seconds:
            self._deaths.popleft()
        recent = len(self._deaths)
        if life is EngineLife.NOTHING:
            if recent >= self._limit:
                return None
            self._deaths.append(now_seconds)
        elif self._limit == 0:
            return None
        return min(self._delay_max_seconds, self._delay_seconds * 2.0**recent)
