"""A cache tier whose answers get lost, as ordered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kvcache.tiers import BlockKey, Tier, TierStats
from kvcache.tiers.entry import Buffer


class FaultyTier:
    """Wraps a `Tier`; a read that is lost ends when nobody waits for it any more."""

    def __init__(self, tier: Tier, loses_read: Callable[[], bool], patience_seconds: float) -> None:
        """`loses_read` is asked at each read, by the threads that read.

        `patience_seconds` is longer than anybody waits for a read.
        """
        self._tier = tier
        self._loses_read = loses_read
        self._patience_seconds = patience_seconds

    @property
    def name(self) -> str:
        return self._tier.name

    def leading_hits(self, keys: Sequence[BlockKey]) -> int:
        return self._tier.leading_hits(keys)

    def read(self, keys: Sequence[BlockKey], into: Sequence[memoryview]) -> int:
        if self._loses_read():
            time.sleep(self._patience_seconds)
        return self._tier.read(keys, into)

    def put(self, key: BlockKey, payload: Buffer) -> bool:
        return self._tier.put(key, payload)

    def drop_namespace(self, namespace: bytes) -> None:
        self._tier.drop_namespace(namespace)

    def clear(self) -> None:
        self._tier.clear()

    def stats(self) -> TierStats:
        return self._tier.stats()

    def close(self) -> None:
        self._tier.close()
