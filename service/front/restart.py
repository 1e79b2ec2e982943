"""When a dead engine is started again, and when to give up.

An engine that dies for what it does dies again, so few tries are enough. One that cannot start,
in a server whose engines once could, is kept out by others, who have its memory or its files: it
is tried for much longer, while the streams wait.
"""

from __future__ import annotations

import enum
from collections import deque

_MAX_DOUBLINGS = 1000  # of a float that stays finite


class EngineLife(enum.Enum):
    """What an engine was good for, from the last death to its own."""

    PROGRESS = "progress"  # a request got something
    EVIDENCE = "evidence"  # nobody did, but the search for a request that kills came on
    NOTHING = "nothing"
    KEPT_OUT = "kept out"  # it could not start, though one before it could


class RestartPolicy:
    """Exponential back-off, counted over the engines in a row that were good for nothing.

    Only those count that died within the window. An engine that computed something is not
    part of a crash loop, however often engines die; and the search for the request that
    kills them must not be given up while it comes on. Those that were kept out are not counted
    but timed.
    """

    def __init__(
        self,
        delay_seconds: float,
        delay_max_seconds: float,
        limit: int,
        window_seconds: float,
        patience_seconds: float,
    ) -> None:
        """`limit` 0: no engine is ever started again.

        `patience_seconds` is how long engines in a row may be kept out.
        """
        self._delay_seconds = delay_seconds
        self._delay_max_seconds = delay_max_seconds
        self._limit = limit
        self._window_seconds = window_seconds
        self._patience_seconds = patience_seconds
        self._deaths: deque[float] = deque()
        self._kept_out_seconds: float | None = None  # since when
        self._kept_out = 0  # engines in a row

    def next_delay(self, now_seconds: float, life: EngineLife) -> float | None:
        """Pause before the restart after this death; None: the limit is reached."""
        if life is EngineLife.KEPT_OUT:
            return self._delay_outside(now_seconds)
        self._kept_out_seconds, self._kept_out = None, 0
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
        return self._delay(recent)

    def _delay_outside(self, now_seconds: float) -> float | None:
        if self._kept_out_seconds is None:
            self._kept_out_seconds = now_seconds
        if self._limit == 0 or now_seconds - self._kept_out_seconds >= self._patience_seconds:
            return None
        self._kept_out += 1
        return self._delay(self._kept_out - 1)

    def _delay(self, earlier: int) -> float:
        """After so many before it."""
        doublings = min(earlier, _MAX_DOUBLINGS)
        return min(self._delay_max_seconds, self._delay_seconds * 2.0**doublings)
