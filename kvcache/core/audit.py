"""The full cross-check of holders, index, pool and eviction order, for tests and post-mortems."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from kvcache.core.block_store import BlockStore
from kvcache.core.eviction import EvictionOrder
from kvcache.core.pending import PendingPrefixes
from kvcache.core.pool import BlockPool
from kvcache.core.radix import Parent, RadixIndex
from kvcache.core.sequence import Holder
from kvcache.core.states import BlockState, HolderKind
from kvcache.errors import ConservationError


def audit_core(
    store: BlockStore, pending: PendingPrefixes, holders: Mapping[int, Holder], block_tokens: int
) -> None:
    """Compares everything with everything, O(all of it); raises ConservationError."""
    pool, index, order = store.pool, store.index, store.order
    pool.audit()
    index.audit(Counter(holder.namespace for holder in holders.values()))
    order.audit()
    for holder in holders.values():
        _audit_table(holder, block_tokens)
        _audit_path(holder, index, block_tokens)
        if pending.is_pending(holder) != pending.is_worth_waiting_for(holder):
            raise ConservationError(f"holder {holder.holder_id} is pending against its state")
    if len(pending) != sum(map(pending.is_pending, holders.values())):
        raise ConservationError("somebody is pending who is gone")
    _audit_ownership(pool, holders)
    _audit_index(pool, index, order)
    _audit_eviction(pool, index, order)


def _audit_table(holder: Holder, block_tokens: int) -> None:
    if len(set(holder.table)) != len(holder.table):
        raise ConservationError(f"holder {holder.holder_id} has a block twice")
    if len(holder.table) != -(-len(holder.tokens) // block_tokens):
        raise ConservationError(
            f"holder {holder.holder_id} has {len(holder.table)} blocks "
            f"for {len(holder.tokens)} tokens"
        )


def _audit_path(holder: Holder, index: RadixIndex, block_tokens: int) -> None:
    """The published part of a table is a path of the index, token for token."""
    if not holder.is_indexed:
        return
    parent: Parent = holder.namespace
    for number, block in enumerate(holder.table[: holder.published_blocks]):
        if index.find(parent, holder.block_of_tokens(number, block_tokens)) != block:
            raise ConservationError(f"the path of holder {holder.holder_id} is not its own")
        parent = block


def _audit_ownership(pool: BlockPool, holders: Mapping[int, Holder]) -> None:
    """The pool has exactly the holders whose tables have the block."""
    owners: defaultdict[int, dict[int, HolderKind]] = defaultdict(dict)
    for holder in holders.values():
        for block in holder.table:
            owners[block][holder.holder_id] = holder.kind
    for block in range(1, pool.num_blocks):
        if pool.holders(block) != owners[block]:
            raise ConservationError(
                f"block {block} has holders {sorted(pool.holders(block))} in the pool "
                f"and {sorted(owners[block])} by their tables"
            )


def _audit_index(pool: BlockPool, index: RadixIndex, order: EvictionOrder) -> None:
    """What leads to a block is held, kept and reused at least as much as the block."""
    for block in range(1, pool.num_blocks):
        if pool.is_published(block) != (block in index):
            raise ConservationError(f"pool and index disagree on block {block}")
        if (pool.state(block) is BlockState.CACHED) != (block in order):
            raise ConservationError(f"pool and eviction rings disagree on block {block}")
    for block, node in index.nodes():
        if pool.group(block) != index.group_of(node.namespace):
            raise ConservationError(f"block {block} is of another group than its namespace")
        if isinstance(node.parent, int):
            before = node.parent
            if not pool.holders(block).items() <= pool.holders(before).items():
                raise ConservationError(f"block {block} has holders that block {before} has not")
            is_kept_less = order.level(before) < order.level(block)
            if is_kept_less or order.is_reused(before) < order.is_reused(block):
                raise ConservationError(f"block {block} is worth more than block {before}")


def _audit_eviction(pool: BlockPool, index: RadixIndex, order: EvictionOrder) -> None:
    """Of two cached blocks the one that continues the other goes first."""
    place = {block: (tick, number) for number, (block, tick) in enumerate(order.blocks())}
    for block, node in index.nodes():
        if block not in order or node.parent not in order:
            continue
        assert isinstance(node.parent, int)
        is_of_one_ring = order.ring(block) == order.ring(node.parent)
        if place[node.parent][0] < place[block][0] or (
            is_of_one_ring and place[node.parent] < place[block]
        ):
            raise ConservationError(f"block {block} was released after block {node.parent}")
    groups = sorted(pool.groups)
    for some in (groups, *([group] for group in groups)):
        victim = order.victim(some)
        if victim is not None and index.node(victim).continuations > 0:
            raise ConservationError(f"block {victim} would be evicted before what continues it")
