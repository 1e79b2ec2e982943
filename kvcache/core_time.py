"""When it is for a core: marks, times to live, and the times of its samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from kvcache.admission import RETENTION_LEVELS
from kvcache.core import CacheCore
from kvcache.errors import InvalidArgumentError
from kvcache.histograms import BlockHistograms, SampledTimes
from kvcache.ticks import NO_TICK, TickClock

FOR_EVER: Sequence[float | None] = (None,) * RETENTION_LEVELS


class CoreTime:
    """The clock of a core: marks its ticks, expires its retention levels, times its samples.

    `ttl_seconds` has a time to live per retention level, None for ever, never decreasing with
    the level. After that a released block is evicted as if its level were 0 (so that of level
    0 says nothing itself).
    """

    def __init__(
        self, core: CacheCore, clock: Callable[[], float], ttl_seconds: Sequence[float | None]
    ) -> None:
        times = [math.inf if ttl is None else ttl for ttl in ttl_seconds]
        in_order = all(lower <= higher for lower, higher in pairwise(times))
        if len(times) != RETENTION_LEVELS or not in_order or not min(times) >= 0:
            limit = (
                f"{RETENTION_LEVELS} times of at least 0 that do not decrease; "
                "None, for ever, is the largest"
            )
            raise InvalidArgumentError("retention_ttl_seconds", tuple(ttl_seconds), limit)
        self._core = core
        self._clock = clock
        self._ttl_seconds = times
        self._has_ttl = min(times[1:]) < math.inf
        self._expired_ticks = [NO_TICK] * RETENTION_LEVELS
        self._ticks = TickClock()
        self._sampled = SampledTimes()
        self.note()

    def note(self) -> None:
        """A sequence was released."""
        self._ticks.note(self._clock(), self._core.ticks)

    def expire_retention(self) -> None:
        """Tells the core what has outlived its time. Cheap where no time is limited."""
        if not self._has_ttl:
            return
        now_seconds = self._clock()
        for level in range(1, RETENTION_LEVELS):
            tick = self._ticks.tick_at(now_seconds - self._ttl_seconds[level])
            if tick > self._expired_ticks[level]:
                self._core.set_expiry(level, tick)
                self._expired_ticks[level] = tick

    def histograms(self) -> BlockHistograms:
        """All samples of the core so far."""
        self.take_samples()
        return self._sampled.histograms()

    def take_samples(self) -> None:
        """Times what the core has sampled; it keeps only the latest."""
        if samples := self._core.drain_samples():
            self._sampled.add(samples, self._ticks, self._core.ticks, self._clock())
