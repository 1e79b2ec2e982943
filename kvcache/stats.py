"""Figures of the cache."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from kvcache.preemption import PreemptionMode


class MissReason(enum.Enum):
    """Why a lookup found less than it could have; one reason a lookup."""

    TOO_SHORT = "too_short"  # not one whole block before the last token
    DIVERGED = "diverged"  # nothing cached goes on like this
    EVICTED = "evicted"  # what would have matched was evicted not long ago
    NAMESPACE = "namespace"  # another namespace has the first block, this one has not
    DISABLED = "disabled"  # the request asked not to use the cache


class RecomputeCause(enum.Enum):
    """Why tokens are computed that were computed before."""

    TRIM = "trim"  # preempted, the tail was taken
    SWAP = "swap"  # preempted, and not all was swapped in again
    RECOMPUTE = "recompute"  # preempted as a whole
    EVICTION = "eviction"  # evicted not long before they were asked for
    FLUSH = "flush"  # flushed while the sequence was preempted


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Gauges are of this moment, counters since the start. Blocks, unless named otherwise.

    free + cached + expected + held + pinned + loading + storing = total, the null block left
    out. The first three together are available.
    """

    total: int
    free: int
    cached: int  # in the index, held by nobody
    expected: int  # as cached, but a request that waits is going to hit them
    held: int  # by sequences
    pinned: int
    loading: int
    storing: int
    reserved: int  # entries of block tables without a computed token yet
    shared: int  # with two or more holders
    stranded_blocks: int  # free, below one that is not: no end of the pool to give back
    live_sequences: int
    slack_tokens: int  # slots of held blocks that no token of their sequence has taken yet
    lookup_tokens: int  # of admitted sequences that used the cache and were not resumed
    hit_tokens: int  # of these, found
    partial_hit_tokens: int  # found in a block that agrees in part, by a copy; part of the hits
    resumed_hit_tokens: int  # found by sequences that came back after a preemption
    deduplicated_blocks: int  # computed twice, kept once
    evicted_blocks: int
    regretted_tokens: int  # evicted and then asked for again
    preemptions: int
    forks: int
    dropped_expectations: int  # let go for want of blocks
    expired_pins: int
    expired_loads: int
    expired_stores: int
    late_completions: int  # of loads whose lease was over
    misses: Mapping[MissReason, int]
    preemptions_by_mode: Mapping[PreemptionMode, int]
    recompute_tokens: Mapping[RecomputeCause, int]


@dataclass(frozen=True, slots=True)
class TenantStats:
    """As CacheStats, for one tenant; for one without a share, of all such together."""

    in_use: int
    cached: int  # expected ones included
    floor_blocks: int
    quota_blocks: int | None
    lookup_tokens: int
    hit_tokens: int
    evicted_for_others: int  # blocks


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
