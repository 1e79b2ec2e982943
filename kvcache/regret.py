"""Remembers what was evicted, to count what is asked for again.

Only statistics rest on the digests here; contents are always compared token by token. So 64
bits that are cheap to compute over whole arrays are enough, and no cryptography is needed.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

# Odd multipliers of splitmix64 (Steele, Lea and Flood, 2014).
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_A = np.uint64(0xBF58476D1CE4E5B9)
_MIX_B = np.uint64(0x94D049BB133111EB)


def namespace_digest(namespace: bytes) -> int:
    """Where the digests of a namespace start from."""
    return int.from_bytes(hashlib.blake2b(namespace, digest_size=8).digest(), "little")


def prefix_digests(
    tokens: NDArray[np.int32], block_tokens: int, start_block: int, start_digest: int
) -> NDArray[np.uint64]:
    """One digest per block of `tokens`, each of the whole prefix that ends with that block.

    `tokens` [n * block_tokens] begin at block number `start_block`; `start_digest` is the
    digest of the block before, or of the namespace.
    """
    first = start_block * block_tokens
    positions = np.arange(first, first + tokens.size, dtype=np.uint64)
    mixed = tokens.astype(np.uint64) * _MIX_A + positions * _GOLDEN
    mixed ^= mixed >> np.uint64(31)
    mixed *= _MIX_B
    mixed ^= mixed >> np.uint64(29)
    mixed[:1] += np.uint64(start_digest)
    return np.cumsum(mixed, dtype=np.uint64)[block_tokens - 1 :: block_tokens]


class EvictionMemory:
    """The last `capacity` .. 2 x `capacity` evicted blocks, by digest.

    Two generations of a set instead of a queue: forgetting is a swap, O(1).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def remember(self, digests: NDArray[np.uint64]) -> None:
        """Notes evicted blocks."""
        while digests.size:
            if len(self._young) >= self._capacity:
                self._old, self._young = self._young, set()
            room = self._capacity - len(self._young)
            self._young.update(digests[:room].tolist())
            digests = digests[room:]

    def count_leading(self, digests: NDArray[np.uint64]) -> int:
        """How many of `digests`, from the first on, are of evicted blocks."""
        for count, digest in enumerate(digests.tolist()):
            if digest not in self._young and digest not in self._old:
                return count
        return int(digests.size)
