"""Typed answers to "may this sequence start now?", and the pure rules that give them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from operator import index
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvcache.core import LEVELS, PrefixMatch
from kvcache.errors import InvalidArgumentError

SEQUENCE_ID_LIMIT = 2**62  # ids from here on are the manager's own, of pins and leases
RETENTION_LEVELS = LEVELS


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionRequest:
    """A sequence that wants blocks for all of `token_ids`."""

    sequence_id: int
    token_ids: NDArray[np.int32]
    namespace: bytes
    use_cache: bool = True  # take cached blocks
    publish: bool = True  # let others take its blocks
    headroom_blocks: int = 0  # to stay available behind it, so that running ones can grow
    resumed: bool = False  # it was admitted before: its hits are not news about the cache
    tenant: str = ""  # on whose share of the pool it lives
    retention: int = 0  # its blocks outlast those of lower levels in the cache; at most 7

    def __post_init__(self) -> None:
        object.__setattr__(self, "token_ids", require_tokens(self.token_ids))
        if self.token_ids.size == 0:
            raise InvalidArgumentError("token_ids", [], "at least one token")
        require_namespace(self.namespace)
        if not 0 <= index(self.sequence_id) < SEQUENCE_ID_LIMIT:
            limit = f"from 0 to {SEQUENCE_ID_LIMIT - 1}"
            raise InvalidArgumentError("sequence_id", self.sequence_id, limit)
        if index(self.headroom_blocks) < 0:
            raise InvalidArgumentError("headroom_blocks", self.headroom_blocks, "at least 0")
        if not 0 <= index(self.retention) < RETENTION_LEVELS:
            limit = f"from 0 to {RETENTION_LEVELS - 1}"
            raise InvalidArgumentError("retention", self.retention, limit)


def require_namespace(namespace: bytes) -> None:
    """Raises InvalidArgumentError for text and whatever else is not compared as bytes are."""
    if not isinstance(namespace, bytes):
        raise InvalidArgumentError("namespace", namespace, "bytes")


def require_tokens(token_ids: NDArray[np.int32]) -> NDArray[np.int32]:
    """The array, contiguous; raises InvalidArgumentError unless it is flat int32.

    Blocks are compared byte by byte: tokens of another type would never match, silently.
    """
    if not isinstance(token_ids, np.ndarray):
        raise InvalidArgumentError("token_ids", token_ids, "a flat int32 array")
    if token_ids.ndim != 1 or token_ids.dtype != np.int32:
        found = f"{token_ids.dtype} array of shape {token_ids.shape}"
        raise InvalidArgumentError("token_ids", found, "a flat int32 array")
    return np.ascontiguousarray(token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class AdmissionPlan:
    """What `begin` needs in order to do as `admit` said."""

    request: AdmissionRequest
    match: PrefixMatch
    partial: tuple[int, int]  # a block that agrees behind the match, and in how many tokens
    group: int  # of the core, to which the tenant's blocks are charged
    version: int  # of the cache the match was made in


@dataclass(frozen=True, slots=True)
class Fits:
    """The sequence can start: pass this to `begin`."""

    cached_tokens: int  # need not be computed
    new_blocks: int  # to allocate beside the cached ones
    plan: AdmissionPlan = field(repr=False, compare=False)


class Shortage(enum.Enum):
    """What a sequence that does not fit now runs into."""

    POOL = "pool"  # too many blocks are in use
    FLOORS = "floors"  # what is left is guaranteed to other tenants
    QUOTA = "quota"  # its tenant has as much in use as it may


@dataclass(frozen=True, slots=True)
class NotNow:
    """It could start if `short_blocks` more were available."""

    short_blocks: int
    holders: tuple[int, ...]  # sequences that hold the most blocks, largest first
    reason: Shortage = Shortage.POOL


@dataclass(frozen=True, slots=True)
class NeverFits:
    """It exceeds what its tenant can ever have, and cannot start however long it waits."""

    needed_blocks: int
    total_blocks: int  # of the pool
    limit_tokens: int  # the most that would fit: the pool, the tenant's quota, others' floors


Admission = Fits | NotNow | NeverFits


def most_hits(token_ids: NDArray[np.int32], block_tokens: int) -> int:
    """Blocks that may be hit: the last token is always computed, for its logits."""
    return max(0, token_ids.size - 1) // block_tokens


class Available(NamedTuple):
    """Blocks that a tenant can have now, by what bounds them; may be negative."""

    pool_blocks: int  # held by nobody, or only expected
    unowed_blocks: int  # of these, without what other tenants' floors still lack
    quota_blocks: int  # that the tenant's quota leaves; as many as the pool has, without one


@dataclass(frozen=True, slots=True)
class Need:
    """What a sequence wants of the available blocks.

    The evictable ones among its hits are no source of new blocks: taking the hit makes them
    held. The headroom is for the growth of others, so no quota has to leave it; and on an idle
    pool, where nobody could use it, insisting on it would let the sequence wait for ever.
    """

    new_blocks: int
    evictable_hits: int
    headroom_blocks: int  # 0 on an idle pool

    def short_blocks(self, available: Available) -> int:
        """How many blocks are lacking; 0 or less: none."""
        taken = self.new_blocks + self.evictable_hits
        unowed = taken + self.headroom_blocks - available.unowed_blocks
        return max(unowed, taken - available.quota_blocks)

    def shortage(self, available: Available) -> Shortage:
        """What the lacking blocks are bounded by; if by several, the widest."""
        wanted = self.new_blocks + self.evictable_hits + self.headroom_blocks
        if wanted > available.pool_blocks:
            return Shortage.POOL
        return Shortage.FLOORS if wanted > available.unowed_blocks else Shortage.QUOTA
