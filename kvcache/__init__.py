"""A paged KV cache manager: blocks, prefix sharing, admission, eviction, preemption, tiers.

It deals in block numbers and token ids; memory is an `Arena`, arithmetic is elsewhere.

    >>> import numpy as np
    >>> from kvcache import AdmissionRequest, CacheManager, Fits
    >>> manager = CacheManager(num_blocks=9, block_tokens=4)  # block 0 is the null block
    >>> prompt = np.arange(10, dtype=np.int32)
    >>> answer = manager.admit(AdmissionRequest(1, prompt, namespace=b""))
    >>> assert isinstance(answer, Fits)
    >>> manager.begin(answer)  # cached tokens: none yet
    0
    >>> manager.block_table(1)
    array([1, 2, 3], dtype=int32)
    >>> manager.commit(1, computed_tokens=10)  # after the model has written K and V
    >>> manager.append(1, token_id=42)  # a new token; 0: it has a slot
    0
    >>> manager.release(1)
    True
    >>> manager.admit(AdmissionRequest(2, prompt, namespace=b""))
    Fits(cached_tokens=8, new_blocks=1)

A sequence     admit -> Fits | NotNow | NeverFits; begin; append and commit in every step;
               fork; release. When `append` is short of blocks, `plan_preemption` says whom to
               `preempt`, and how; `forget` one that will not come back.
What is kept   lookup, pending_prefix; expect for a request that waits; pin until a deadline;
               flush. Tenants have a TenantShare (set_share), requests a retention level.
Transfers      begin_load and finish_load, begin_store and end_lease: leases with deadlines,
               ended by expire. `kvcache.tiers` builds host, disk and remote tiers on them.
The pool       resize; add_listener; snapshot and EventLog, for an IndexReplica elsewhere.
Figures        stats, tenant_stats, histograms, fragmentation; check and audit.
Pressure       forecast_exhaustion with OutputLengths, Trend: how soon what runs out; levels
               with hysteresis: Threshold, LevelLatch.

Counts are in blocks or tokens, times in seconds, sizes in bytes, as the names say. Whatever is
refused raises a `kvcache.errors.KVCacheError`, with the facts as attributes, and has changed
nothing. After Kwon et al., PagedAttention (arXiv:2309.06180): blocks, block tables,
copy on write; and Zheng et al., RadixAttention (arXiv:2312.07104): the prefix index.

`kvcache.core.eviction` says what is evicted first, `kvcache.preemption` who gives way,
`kvcache.replay` plays recorded traces through the manager.
"""

from importlib import import_module

_NAMES = {  # __init__.pyi is the same for type checkers
    "admission": "Admission AdmissionRequest Fits NeverFits NotNow Shortage",
    "arena": "Arena",
    "core.eviction": "PolicyName",
    "events": "EventLog IndexListener IndexReplica IndexSnapshot",
    "forecast": "OutputLengths forecast_exhaustion",
    "fragmentation": "Fragmentation",
    "histograms": "BlockHistograms Histogram",
    "layout": "KVDtype KVLayout",
    "leases": "LoadLease Pin StoreLease",
    "manager": "CacheManager",
    "memory": "ArenaMemory BlockMemory",
    "namespace": "namespace_key",
    "preemption": "Preemption PreemptionMode PreemptionPlan VictimCandidate plan_preemption",
    "pressure": "FOREVER_SECONDS LevelLatch PressureLevel Threshold Trend",
    "rates": "PreemptionRates RateMeter",
    "stats": "CacheStats FlushResult MissReason RecomputeCause ResizeResult TenantStats",
    "tenants": "TenantShare",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Loaded on first use: a process that only names namespaces need not load numpy."""
    if name not in _HOMES:
        raise AttributeError(f"module 'kvcache' has no attribute {name!r}")
    return getattr(import_module(f"kvcache.{_HOMES[name]}"), name)
