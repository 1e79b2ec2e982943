"""Remembers what was evicted, to count what is asked for again.

Only statistics rest on the digests here; contents are always compared token by token.
"""

from __future__ import annotations


def chain_digest(previous: int, block: bytes) -> int:
    """Digest of a prefix that ends with `block`, from the digest of the prefix before it."""
    return hash((previous, block))


class EvictionMemory:
    """The last `capacity` .. 2 x `capacity` evicted blocks, by the digest of their prefix.

    Two generations of a set instead of a queue: forgetting is a swap, O(1).
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def __contains__(self, digest: int) -> bool:
        return digest in self._young or digest in self._old

    def remember(self, digest: int) -> None:
        """Notes an evicted block."""
        if len(self._young) >= self._capacity:
            self._old, self._young = self._young, set()
        self._young.add(digest)
