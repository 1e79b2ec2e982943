"""The blocks of the Python core: pool, prefix index and eviction order as one."""

from __future__ import annotations

from collections.abc import Container

from kvcache.core.eviction import GROUPS, EvictionOrder, EvictionRule
from kvcache.core.pool import BlockPool, require_size
from kvcache.core.radix import Parent, RadixIndex
from kvcache.core.records import EventRecorder, LifeSampler
from kvcache.core.regret import EvictionMemory
from kvcache.core.sequence import Holder
from kvcache.core.shares import (
    GroupLimits,
    GroupShare,
    available_blocks,
    obtainable_blocks,
    spare_blocks,
)
from kvcache.core.states import BlockState, HolderKind
from kvcache.errors import ConservationError, OutOfBlocksError

_NO_LIMITS = GroupLimits()


class BlockStore:
    """What happens to a block in one of the three happens in the others as well.

    Its parts are there to be read.
    """

    def __init__(
        self, num_blocks: int, block_tokens: int, rule: EvictionRule, *, record_events: bool
    ) -> None:
        self.pool = BlockPool(num_blocks)
        self.index = RadixIndex(num_blocks, block_tokens)
        self.order = EvictionOrder(num_blocks, rule)
        self.evicted_before = EvictionMemory(num_blocks // 2)
        self.events = EventRecorder(is_wanted=record_events)
        self.samples = LifeSampler()
        self.evicted_blocks = 0
        self._limits: dict[int, GroupLimits] = {}

    # --- the blocks of holders -----------------------------------------------

    def hold(self, block: int, holder: Holder) -> None:
        """One holder more of a block of the index, or of one that is held."""
        before = self.pool.hold(block, holder.holder_id, holder.kind)
        if before is BlockState.CACHED:
            released_at = self.order.remove(block)
            if holder.kind is HolderKind.SEQUENCE:
                self.samples.used_again(block, released_at, self.order.now)
        self.order.raise_level(block, holder.level)

    def let_go(self, block: int, holder: Holder) -> None:
        """One holder less."""
        if self.pool.release(block, holder.holder_id) is BlockState.CACHED:
            self.order.add(block, self.pool.group(block))

    def allocate(self, count: int, holder: Holder) -> list[int]:
        """New blocks for a holder, evicting as needed. They are known to be obtainable."""
        self._make_room(count, holder.group)
        blocks = [
            self.pool.allocate(holder.holder_id, holder.kind, holder.group) for _ in range(count)
        ]
        for block in blocks:
            self.order.allocated(block, holder.level)
        return blocks

    def publish(self, block: int, holder: Holder, parent: Parent, tokens: bytes) -> None:
        """A block of a holder goes to the index, which has nothing like it."""
        self.pool.publish(block, holder.holder_id)
        self.index.insert(block, holder.namespace, parent, tokens)
        self.samples.published(block, self.order.now)

    # --- room ----------------------------------------------------------------

    def set_group(self, group: int, limits: GroupLimits) -> None:
        """What a group was promised and denied from now on."""
        self._limits[group] = limits

    def shares(self, group: int) -> dict[int, GroupShare]:
        """The shares of all groups that have blocks or limits, and of `group`."""
        shares = {}
        for number in {group, *self.pool.groups, *self._limits}:
            charged = self.pool.charged(number)
            cached, expected = charged[BlockState.CACHED], charged[BlockState.EXPECTED]
            in_use = sum(charged) - cached - expected
            limits = self._limits.get(number, _NO_LIMITS)
            shares[number] = GroupShare(in_use, cached, expected, limits)
        return shares

    def available(self, group: int) -> int:
        """Blocks that a group can have once no expectation is in the way."""
        return available_blocks(self.pool.free_blocks, self.shares(group), group)

    def obtainable(self, group: int) -> int:
        """Blocks that a holder can have now."""
        return obtainable_blocks(self.pool.free_blocks, self.shares(group), group)

    def require_room(self, new_blocks: int, group: int, hits: list[int], kind: HolderKind) -> None:
        """Raises OutOfBlocksError unless a holder can have hits of its group and new blocks."""
        states = [self.pool.state(block) for block in hits]
        cached, expected = states.count(BlockState.CACHED), states.count(BlockState.EXPECTED)
        free, shares = self.pool.free_blocks, self.shares(group)
        is_used = kind is not HolderKind.EXPECT
        shares[group] = shares[group].with_hits(cached, expected, in_use=is_used)
        obtainable = obtainable_blocks(free, shares, group)
        takes_hits = is_used and cached + expected > 0
        if new_blocks > obtainable or (takes_hits and spare_blocks(free, shares, group) < 0):
            raise OutOfBlocksError(new_blocks, obtainable)

    def evict(self, count: int) -> int:
        """Evicts up to `count` blocks of any group; answers how many."""
        evicted = min(count, self.pool.count(BlockState.CACHED))
        for _ in range(evicted):
            self._evict_one(range(GROUPS))
        return evicted

    # --- the whole -----------------------------------------------------------

    def resize(self, num_blocks: int) -> list[tuple[int, int]]:
        """Changes the size; answers the moves that this took. See CacheCore.resize."""
        require_size(num_blocks)
        used = self.pool.num_blocks - 1 - self.pool.free_blocks
        fixed = used - self.pool.count(BlockState.CACHED)
        if fixed > num_blocks - 1:
            raise OutOfBlocksError(fixed, num_blocks - 1)
        self.evict(max(0, used - (num_blocks - 1)))
        moves = self.pool.resize(num_blocks)
        destinations = dict(moves)
        self.order.resize(num_blocks, destinations)
        if moves:
            self.index.rename(destinations)
            self.samples.moved(destinations)
            self.events.moved(moves)
        return moves

    def drop(self, namespace: bytes | None) -> tuple[int, int]:
        """Forgets a namespace (None: all). Answers the blocks freed, and those still held."""
        dropped = self.index.drop(namespace)
        freed = 0
        for block in dropped:
            if block in self.order:
                self.order.remove(block)
                freed += 1
            self.pool.unpublish(block, "flush")
            self.samples.forget(block)
        self.events.cleared(namespace)
        return freed, len(dropped) - freed

    def check(self) -> None:
        """Conservation, O(1)."""
        self.pool.check()
        cached = self.pool.count(BlockState.CACHED)
        if cached != len(self.order):
            raise ConservationError(
                f"the pool has {cached} cached blocks, the eviction rings {len(self.order)}"
            )

    # --- mechanism -----------------------------------------------------------

    def _make_room(self, count: int, group: int) -> None:
        """Evicts until `count` blocks are free for a group, within its quota."""
        if count == 0:
            return
        for _ in range(self.shares(group)[group].over_quota(count)):
            self._evict_one((group,))
        while self.pool.free_blocks < count:
            shares = self.shares(group).items()
            takeable = [number for number, share in shares if share.takeable > 0]
            self._evict_one((group, *takeable))

    def _evict_one(self, groups: Container[int]) -> None:
        victim = self.order.victim(groups)
        if victim is None:
            raise ConservationError("no block can be evicted, against the counts")
        node = self.index.remove(victim)
        self.evicted_before.remember(node.digest)
        released_at = self.order.remove(victim)
        self.pool.unpublish(victim, "eviction")
        self.samples.evicted(victim, released_at, self.order.now)
        self.events.removed(victim)
        self.evicted_blocks += 1
