"""How long blocks live, idle and wait to be used again, from a sample of the blocks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.core import CoreSample
from kvcache.core.records import EVICTED
from kvcache.ticks import TickClock

BOUNDS_SECONDS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4, 3e4, 1e5)


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts[i]` values are at most `bounds_seconds[i]`; the last count is of larger ones."""

    bounds_seconds: tuple[float, ...]
    counts: tuple[int, ...]
    sum_seconds: float


@dataclass(frozen=True, slots=True)
class BlockHistograms:
    """Of one block in 64. Times are exact to the releases of sequences around them."""

    lifetime_seconds: Histogram  # of evicted blocks: from computed to evicted
    idle_before_evict_seconds: Histogram  # of evicted blocks: from the last release on
    reuse_gap_seconds: Histogram  # of cached blocks that were hit: from the last release on


class _Tally:
    def __init__(self) -> None:
        self._counts = np.zeros(len(BOUNDS_SECONDS) + 1, np.int64)
        self._sum_seconds = 0.0

    def add(self, seconds: NDArray[np.float64]) -> None:
        places = np.searchsorted(BOUNDS_SECONDS, seconds)
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._sum_seconds += float(seconds.sum())

    def histogram(self) -> Histogram:
        return Histogram(BOUNDS_SECONDS, tuple(self._counts.tolist()), self._sum_seconds)


class SampledTimes:
    """Adds samples up."""

    def __init__(self) -> None:
        self._lifetime, self._idle, self._gap = _Tally(), _Tally(), _Tally()

    def add(
        self, samples: Iterable[CoreSample], clock: TickClock, tick: int, now_seconds: float
    ) -> None:
        """Takes samples in, see CacheCore.drain_samples.

        `tick` is the present one: what came after it was just now.
        """
        rows = np.array(list(samples), np.int64).reshape(-1, 4)
        ended = np.where(rows[:, 3] < tick, clock.seconds_at(rows[:, 3]), now_seconds)
        age = ended - clock.seconds_at(rows[:, 1])
        is_evicted = rows[:, 0] == EVICTED
        self._lifetime.add(age[is_evicted])
        self._idle.add((ended - clock.seconds_at(rows[:, 2]))[is_evicted])
        self._gap.add(age[~is_evicted])

    def histograms(self) -> BlockHistograms:
        """All samples so far."""
        return BlockHistograms(
            self._lifetime.histogram(), self._idle.histogram(), self._gap.histogram()
        )
