"""The full cross-check of sequences, index and pool, for tests and post-mortems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kvcache.errors import ConservationError
from kvcache.node import Node
from kvcache.pool import BlockPool
from kvcache.radix import RadixIndex
from kvcache.sequence import LiveSequence


def audit_ownership(
    pool: BlockPool, index: RadixIndex, sequences: Mapping[int, LiveSequence], block_tokens: int
) -> None:
    """Counts holders and locks anew and compares; raises ConservationError.

    Holds for a manager without pins and transfers: then what is held is in a block table.
    """
    holders: Counter[int] = Counter()
    locks: Counter[Node] = Counter()
    for sequence in sequences.values():
        table = sequence.table.view.tolist()
        if len(set(table)) != len(table):
            raise ConservationError(f"sequence {sequence.sequence_id} has a block twice")
        if not (len(table) - 1) * block_tokens < sequence.tokens.size <= len(table) * block_tokens:
            raise ConservationError(
                f"sequence {sequence.sequence_id} has {len(table)} blocks "
                f"for {sequence.tokens.size} tokens"
            )
        holders.update(table)
        _audit_path(sequence, table, locks, block_tokens)
    for block in range(1, pool.num_blocks):
        if pool.refcount(block) != holders[block]:
            raise ConservationError(
                f"block {block} has {pool.refcount(block)} references, {holders[block]} holders"
            )
    indexed: set[int] = set()
    for node in index.nodes():
        blocks = node.blocks[: node.count].tolist()
        if node.locks != locks[node]:
            raise ConservationError(f"a node has {node.locks} locks, {locks[node]} lockers")
        for block in blocks:
            if block in indexed or not pool.is_indexed(block):
                raise ConservationError(f"the index has block {block} twice, or without adoption")
            if pool.refcount(block) != node.locks:
                raise ConservationError(f"block {block} is not held as its node is locked")
        indexed.update(blocks)
    adopted = {block for block in range(1, pool.num_blocks) if pool.is_indexed(block)}
    if adopted != indexed:
        raise ConservationError(f"adopted but not in the index: {sorted(adopted - indexed)[:8]}")


def _audit_path(
    sequence: LiveSequence, table: list[int], locks: Counter[Node], block_tokens: int
) -> None:
    """The locked path of a sequence is the published part of its table, token for token."""
    node = sequence.node
    end = sequence.published_blocks
    while node is not None and node.parent is not None:
        locks[node] += 1
        start = end - node.count
        tokens = sequence.tokens.view[start * block_tokens : end * block_tokens]
        if (
            node.start != start
            or node.blocks[: node.count].tolist() != table[start:end]
            or node.tokens[: node.count * block_tokens].tolist() != tokens.tolist()
        ):
            raise ConservationError(f"the path of sequence {sequence.sequence_id} is not its own")
        end = start
        node = node.parent
    if sequence.node is not None and end != 0:
        raise ConservationError(f"the path of sequence {sequence.sequence_id} has a gap")
