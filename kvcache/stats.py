"""Figures of the cache."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class MissReason(enum.Enum):
    """Why a lookup found less than it could have; one reason a lookup."""

    TOO_SHORT = "too_short"  # not one whole block before the last token
    DIVERGED = "diverged"  # nothing cached goes on like this
    EVICTED = "evicted"  # what would have matched was evicted not long ago
    NAMESPACE = "namespace"  # another namespace has the first block, this one has not
    DISABLED = "disabled"  # the request asked not to use the cache


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Gauges are of this moment, counters since the start. Blocks, unless named otherwise.

    free + cached + held + pinned + in_flight = total, the null block left out. `free` and
    `cached` together are available.
    """

    total: int
    free: int
    cached: int  # in the index, held by nobody
    held: int
    pinned: int
    in_flight: int  # loading or storing
    reserved: int  # entries of block tables without a computed token yet
    shared: int  # with two or more holders
    live_sequences: int
    lookup_tokens: int  # of admitted sequences that used the cache and were not resumed
    hit_tokens: int  # of these, found
    resumed_hit_tokens: int  # found by sequences that came back after a preemption
    deduplicated_blocks: int  # computed twice, kept once
    evicted_blocks: int
    regretted_tokens: int  # evicted and then asked for again
    preemptions: int
    misses: Mapping[MissReason, int]


@dataclass(frozen=True, slots=True)
class FlushResult:
    """What a flush did to the blocks of the index."""

    dropped_blocks: int  # freed
    kept_blocks: int  # still held by live sequences, out of the index


@dataclass(frozen=True, slots=True)
class ResizeResult:
    """What a resize did."""

    num_blocks: int  # now, the null block included
    moved_blocks: int  # went from the tail of the pool to lower ids
    evicted_blocks: int  # cached ones, to make the others fit


@dataclass(slots=True)
class Counters:
    """The counting half of CacheStats."""

    lookup_tokens: int
    hit_tokens: int
    resumed_hit_tokens: int
    deduplicated_blocks: int
    evicted_blocks: int
    regretted_tokens: int
    preemptions: int
    misses: dict[MissReason, int]

    @classmethod
    def zero(cls) -> Counters:
        """All counters exist from the start."""
        return cls(0, 0, 0, 0, 0, 0, 0, dict.fromkeys(MissReason, 0))
