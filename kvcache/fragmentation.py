"""Memory of the pool that holds nothing, or holds something twice."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.core import CacheCore
from kvcache.stats import CacheStats


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Bytes are None where the manager has no memory to ask for the size of a block."""

    slack_tokens: int  # internal waste: slots of held blocks without a token
    stranded_blocks: int  # free, but below one that is not: cannot be given back as they are
    duplicate_blocks: int  # computed copies of what another live or cached block contains too
    slack_bytes: int | None
    stranded_bytes: int | None
    duplicate_bytes: int | None

    @classmethod
    def of(
        cls, stats: CacheStats, duplicates: int, block_tokens: int, block_bytes: int | None
    ) -> Fragmentation:
        """In tokens and blocks, and in bytes where the size of a block is known."""

        def bytes_of(tokens: int) -> int | None:
            return None if block_bytes is None else tokens * block_bytes // block_tokens

        return cls(
            slack_tokens=stats.slack_tokens,
            stranded_blocks=stats.stranded_blocks,
            duplicate_blocks=duplicates,
            slack_bytes=bytes_of(stats.slack_tokens),
            stranded_bytes=bytes_of(stats.stranded_blocks * block_tokens),
            duplicate_bytes=bytes_of(duplicates * block_tokens),
        )


def duplicate_blocks(
    core: CacheCore, sequences: Iterable[tuple[int, bytes]], block_tokens: int
) -> int:
    """Full computed blocks of the sequences (id, namespace) less the different ones of them.

    The index has a prefix once, so only sequences that do not publish, or have been computing
    at the same time, add copies. O(tokens of the sequences), times a logarithm for those with
    copies of what is cached.
    """
    copies: defaultdict[tuple[bytes, int], set[int]] = defaultdict(set)
    for sequence_id, namespace in sequences:
        tokens = np.frombuffer(core.tokens(sequence_id), np.int32)
        table = np.frombuffer(core.block_table(sequence_id), np.int32)
        full_blocks = core.computed_tokens(sequence_id) // block_tokens
        cached = _cached_twins(core, namespace, tokens, table, full_blocks)
        digest = 0
        for place in range(full_blocks):
            block = tokens[place * block_tokens : (place + 1) * block_tokens]
            digest = hash((digest, block.tobytes()))
            copies[namespace, digest].update((int(table[place]), *cached.get(place, ())))
    return sum(len(blocks) - 1 for blocks in copies.values())


def _cached_twins(
    core: CacheCore,
    namespace: bytes,
    tokens: NDArray[np.int32],
    table: NDArray[np.int32],
    full_blocks: int,
) -> dict[int, tuple[int]]:
    """For places of the table that have a copy of a block of the index: that block."""

    def cached_block(blocks: int) -> int:
        return core.match(namespace, tokens, blocks)[2]

    hits = core.match(namespace, tokens, full_blocks)[0]
    # The leading blocks of a table that are those of the index are followed by private ones.
    counts = range(1, hits + 1)
    own = bisect_left(counts, True, key=lambda count: cached_block(count) != table[count - 1])
    return {place: (cached_block(place + 1),) for place in range(own, hits)}
