"""What came of a replay. Plain numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kvcache.stats import CacheStats


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """Counters of the prefix cache over the whole replay."""

    lookup_tokens: int
    hit_tokens: int
    evicted_blocks: int
    regretted_tokens: int  # evicted and then asked for again
    deduplicated_blocks: int  # computed twice, kept once

    @classmethod
    def of(cls, stats: CacheStats) -> CacheFigures:
        """The counters of a manager."""
        return cls(
            lookup_tokens=stats.lookup_tokens,
            hit_tokens=stats.hit_tokens,
            evicted_blocks=stats.evicted_blocks,
            regretted_tokens=stats.regretted_tokens,
            deduplicated_blocks=stats.deduplicated_blocks,
        )

    def with_missed(self, tokens: int) -> CacheFigures:
        """The same with `tokens` more that were looked up in vain."""
        return replace(self, lookup_tokens=self.lookup_tokens + tokens)

    @property
    def hit_ratio(self) -> float:
        """Share of the prompt tokens that were found; 0 if there were none."""
        return self.hit_tokens / self.lookup_tokens if self.lookup_tokens else 0.0


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What became of the requests; finished + refused + outgrown are all of them."""

    finished: int
    refused: int  # prompt larger than the pool
    outgrown: int  # ended because prompt and output are larger than the pool
    prompt_tokens: int  # of admitted requests
    output_tokens: int  # produced
    preemptions: int
    recomputed_tokens: int  # computed again after a preemption, cache hits not counted


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution, in the unit of its values."""

    mean: float
    p50: float
    p99: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """All 0 where there is no value."""
        if not values:
            return cls(0.0, 0.0, 0.0, 0.0)
        array = np.asarray(values)
        p50, p99 = np.percentile(array, (50, 99))
        return cls(float(array.mean()), float(p50), float(p99), float(array.max()))


@dataclass(frozen=True, slots=True)
class TimelineSample:
    """The state after a step."""

    seconds: float
    held_blocks: int
    cached_blocks: int
    running: int
    waiting: int
    lookup_tokens: int  # since the start, as is the next
    hit_tokens: int


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Figures of a replay; shares are between 0 and 1, times are simulated."""

    requests: RequestFigures
    cache: CacheFigures
    total_blocks: int
    duration_seconds: float  # from the first arrival to the last token
    # Internal waste: slots of held blocks that no token has, over all slots of held blocks,
    # both summed over time. Cached blocks are full and waste nothing.
    waste: float
    load_line_seconds: float  # in which running sequences held the load line's share or more
    queue_seconds: Spread  # from arrival to first admission
    ttft_seconds: Spread  # from arrival to the first token
    longest_queue: int  # requests
    timeline: tuple[TimelineSample, ...]

    @property
    def load_line_share(self) -> float:
        """Share of the time spent at the load line."""
        return self.load_line_seconds / self.duration_seconds if self.duration_seconds else 0.0
