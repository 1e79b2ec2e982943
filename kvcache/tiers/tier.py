"""What a store of blocks has to do to be a tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kvcache.errors import KVCacheError
from kvcache.tiers.entry import Buffer, EntryFault
from kvcache.tiers.keys import BlockKey


class TierError(KVCacheError):
    """A store cannot do what it was asked now: connection lost, disk full, no permission."""

    def __init__(self, tier: str, reason: str) -> None:
        super().__init__(f"{tier} tier: {reason}")
        self.tier = tier
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TierStats:
    """Figures of a tier; the counts are since it was opened."""

    entries: int | None  # None: the store does not tell
    used_bytes: int | None
    capacity_bytes: int | None
    read_blocks: int
    written_blocks: int
    evicted_blocks: int
    faults: Mapping[EntryFault, int]  # entries that were found and could not be used


class Tier(Protocol):
    """A store of blocks, found by their keys. Its methods may block, and threads share it.

    What was put may be gone at any time; what is read is the very block or nothing, checked
    by the tier. Any method but `stats` and `close` may raise TierError: whoever calls counts
    that as a miss. After `drop_namespace` or `clear` has returned, nothing that was put before
    is ever found again, not after a restart either.
    """

    @property
    def name(self) -> str:
        """What logs and figures call it."""
        ...

    def leading_hits(self, keys: Sequence[BlockKey]) -> int:
        """How many of the first keys the tier has, as far as it knows without reading them."""
        ...

    def read(self, keys: Sequence[BlockKey], into: Sequence[memoryview]) -> int:
        """Reads leading blocks, each into its buffer; answers how many were found and whole.

        The buffers behind these may have been written to.
        """
        ...

    def put(self, key: BlockKey, payload: Buffer) -> bool:
        """Stores one block; False if the tier has no room for it."""
        ...

    def drop_namespace(self, namespace: bytes) -> None:
        """Forgets all blocks of one namespace."""
        ...

    def clear(self) -> None:
        """Forgets all blocks of this fingerprint."""
        ...

    def stats(self) -> TierStats:
        """Figures of this moment, without asking anybody."""
        ...

    def close(self) -> None:
        """Gives back what the tier holds of the machine; a second call does nothing."""
        ...
