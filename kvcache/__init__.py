"""A paged KV cache manager: blocks, prefix sharing, admission, eviction.

It deals in block numbers and token ids only; memory is an `Arena`, arithmetic is elsewhere.

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

A scheduler asks `admit` (pure: Fits, NotNow or NeverFits), calls `begin`, then per step
`append` and `commit`, and at the end `release`. When `append` is short of blocks,
`plan_preemption` says whom to `preempt`, and how. `stats`, `check` and `audit` tell how things
are; a violated rule raises one of the exceptions of `kvcache.errors` at the offender.

`kvcache.eviction` says what is evicted first, `kvcache.events` lets others follow the index,
`kvcache.replay` plays recorded traces through the manager.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcache.admission import Admission, AdmissionRequest, Fits, NeverFits, NotNow
    from kvcache.arena import Arena
    from kvcache.events import EventLog, IndexReplica, IndexSnapshot
    from kvcache.eviction import PolicyName
    from kvcache.layout import KVDtype, KVLayout
    from kvcache.manager import CacheManager
    from kvcache.namespace import namespace_key
    from kvcache.preemption import (
        Preemption,
        PreemptionMode,
        PreemptionPlan,
        VictimCandidate,
        plan_preemption,
    )
    from kvcache.rates import PreemptionRates, RateMeter
    from kvcache.stats import CacheStats, FlushResult, MissReason

__all__ = [
    "Admission",
    "AdmissionRequest",
    "Arena",
    "CacheManager",
    "CacheStats",
    "EventLog",
    "Fits",
    "FlushResult",
    "IndexReplica",
    "IndexSnapshot",
    "KVDtype",
    "KVLayout",
    "MissReason",
    "NeverFits",
    "NotNow",
    "PolicyName",
    "Preemption",
    "PreemptionMode",
    "PreemptionPlan",
    "PreemptionRates",
    "RateMeter",
    "VictimCandidate",
    "namespace_key",
    "plan_preemption",
]

# Loaded on first use: a process that only names namespaces need not load numpy.
_HOMES = {
    "Admission": "admission",
    "AdmissionRequest": "admission",
    "Arena": "arena",
    "CacheManager": "manager",
    "CacheStats": "stats",
    "EventLog": "events",
    "Fits": "admission",
    "FlushResult": "stats",
    "IndexReplica": "events",
    "IndexSnapshot": "events",
    "KVDtype": "layout",
    "KVLayout": "layout",
    "MissReason": "stats",
    "NeverFits": "admission",
    "NotNow": "admission",
    "PolicyName": "eviction",
    "Preemption": "preemption",
    "PreemptionMode": "preemption",
    "PreemptionPlan": "preemption",
    "PreemptionRates": "rates",
    "RateMeter": "rates",
    "VictimCandidate": "preemption",
    "namespace_key": "namespace",
    "plan_preemption": "preemption",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'kvcache' has no attribute {name!r}")
    return getattr(import_module(f"kvcache.{_HOMES[name]}"), name)
