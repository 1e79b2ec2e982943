"""Pool, prefix index and holders as one machine, in C++ and in Python; see `contract`."""

from kvcache.core.contract import (
    NO_MATCH,
    CacheCore,
    CoreCounts,
    PrefixMatch,
    Tokens,
)
from kvcache.core.create import CoreChoice, create_core
from kvcache.core.eviction import GROUPS, LEVELS
from kvcache.core.records import CoreEvent, CoreSample
from kvcache.core.states import HolderKind

__all__ = [
    "GROUPS",
    "LEVELS",
    "NO_MATCH",
    "CacheCore",
    "CoreChoice",
    "CoreCounts",
    "CoreEvent",
    "CoreSample",
    "HolderKind",
    "PrefixMatch",
    "Tokens",
    "create_core",
]
