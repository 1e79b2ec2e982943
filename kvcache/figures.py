"""Joins what the core and the parts of the manager have counted."""

from __future__ import annotations

from types import MappingProxyType

from kvcache.accounting import Accounting
from kvcache.core import CacheCore, CoreCounts, HolderKind
from kvcache.expectations import Expectations
from kvcache.leases import Leases
from kvcache.stats import CacheStats


def cache_stats(
    core: CacheCore,
    usable_blocks: int,
    accounting: Accounting,
    leases: Leases,
    expectations: Expectations,
) -> CacheStats:
    """The figures of this moment, O(1)."""
    counts = CoreCounts(*core.counts())
    return CacheStats(
        total=usable_blocks,
        free=counts.free,
        cached=counts.cached,
        expected=counts.expected,
        held=counts.held,
        pinned=counts.pinned,
        loading=counts.loading,
        storing=counts.storing,
        reserved=counts.reserved,
        shared=counts.shared,
        stranded_blocks=core.highest_used() - (usable_blocks - counts.free),
        live_sequences=counts.live_sequences,
        slack_tokens=counts.slack_tokens,
        lookup_tokens=accounting.lookup_tokens,
        hit_tokens=accounting.hit_tokens,
        partial_hit_tokens=accounting.partial_hit_tokens,
        resumed_hit_tokens=accounting.resumed_hit_tokens,
        deduplicated_blocks=counts.deduplicated,
        evicted_blocks=counts.evicted,
        regretted_tokens=accounting.regretted_tokens,
        preemptions=sum(accounting.preemptions.values()),
        forks=accounting.forks,
        dropped_expectations=expectations.dropped,
        expired_pins=leases.expired[HolderKind.PIN],
        expired_loads=leases.expired[HolderKind.LOAD],
        expired_stores=leases.expired[HolderKind.STORE],
        late_completions=leases.late_completions,
        misses=MappingProxyType(accounting.misses.copy()),
        preemptions_by_mode=MappingProxyType(accounting.preemptions.copy()),
        recompute_tokens=MappingProxyType(accounting.recompute_tokens.copy()),
    )
