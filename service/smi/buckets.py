"""Histograms and counters between two looks."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass


def increase(now: float, before: float | None) -> float:
    """By how much a counter grew. One that fell began anew at 0, as Prometheus has it."""
    return now if before is None or now < before else now - before


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram as Prometheus has it."""

    bounds: tuple[float, ...]  # upper ones, ascending; the last is infinity
    counts: tuple[float, ...]  # of observations up to each bound

    def since(self, before: Buckets | None) -> Buckets:
        """What was observed after `before`: all of it, if the histogram began anew since."""
        if before is None or before.bounds != self.bounds:
            return self
        grown = tuple(now - then for now, then in zip(self.counts, before.counts, strict=True))
        # A bucket that grew by less than a smaller one is a sign as good as one that fell.
        if min(grown) < 0 or any(one > other for one, other in itertools.pairwise(grown)):
            return self
        return Buckets(self.bounds, grown)

    def quantile(self, share: float) -> float | None:
        """The bound below which `share` of the observations are; None without any.

        As histogram_quantile of Prometheus: linear within a bucket, from 0 in the first one, and
        the largest finite bound for what is beyond it.
        """
        total = self.counts[-1]
        if total <= 0 or len(self.bounds) == 1:
            return None
        rank = share * total
        index = bisect.bisect_left(self.counts, rank)
        if index == len(self.bounds) - 1:
            return self.bounds[-2]
        low, below = (self.bounds[index - 1], self.counts[index - 1]) if index else (0.0, 0.0)
        inside = self.counts[index] - below
        part = (rank - below) / inside if inside else 1.0
        return low + (self.bounds[index] - low) * part
