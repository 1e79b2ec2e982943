"""The core in Python: slower than the native one by a factor, and its oracle in the tests."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import replace

from kvcache.core.audit import audit_core
from kvcache.core.block_store import BlockStore
from kvcache.core.checks import (
    require_at_least,
    require_computed,
    require_in_range,
    require_possible,
    require_progress,
    require_quota,
    require_token,
)
from kvcache.core.contract import PrefixMatch, Tokens
from kvcache.core.eviction import GROUPS, LEVELS, EvictionRule
from kvcache.core.pending import PendingPrefixes
from kvcache.core.pool import NULL_BLOCK
from kvcache.core.radix import Parent
from kvcache.core.records import CoreEvent, CoreSample
from kvcache.core.regret import chain_digest
from kvcache.core.sequence import Holder, int32_array
from kvcache.core.shares import GroupLimits
from kvcache.core.states import BlockState, HolderKind
from kvcache.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    UnknownSequenceError,
)
from kvcache.events import Run


class PythonCore:
    """The holders of blocks, and all that a manager asks. The contract is `CacheCore`."""

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        reuse_weight: int,
        protected_blocks: int,
        record_events: bool = False,
    ) -> None:
        rule = EvictionRule(reuse_weight, protected_blocks)
        self._block_tokens = block_tokens
        self._store = BlockStore(num_blocks, block_tokens, rule, record_events=record_events)
        self._pending = PendingPrefixes(block_tokens)
        self._holders: dict[int, Holder] = {}  # in the order of begin
        self._live_sequences = 0
        self._deduplicated = 0
        self.version = 0

    # --- what there is -------------------------------------------------------

    @property
    def live_sequences(self) -> int:
        return self._live_sequences

    @property
    def ticks(self) -> int:
        return self._store.order.now

    def counts(self) -> tuple[int, ...]:
        pool, size = self._store.pool, self._block_tokens
        return (
            pool.free_blocks,
            pool.count(BlockState.CACHED),
            pool.count(BlockState.EXPECTED),
            pool.count(BlockState.HELD),
            pool.count(BlockState.PINNED),
            pool.count(BlockState.LOADING),
            pool.count(BlockState.STORING),
            pool.shared_blocks,
            sum(sequence.unwritten_blocks(size) for sequence in self._sequences()),
            self._live_sequences,
            sum(sequence.slack_tokens(size) for sequence in self._sequences()),
            self._deduplicated,
            self._store.evicted_blocks,
        )

    def highest_used(self) -> int:
        return self._store.pool.highest_used()

    def available_blocks(self, group: int, /) -> int:
        require_in_range("group", group, GROUPS)
        return self._store.available(group)

    def namespace_group(self, namespace: bytes, /) -> int:
        group = self._store.index.group_of(namespace)
        return -1 if group is None else group

    def group_counts(self, group: int, /) -> tuple[int, int]:
        require_in_range("group", group, GROUPS)
        share = self._store.shares(group)[group]
        return share.in_use, share.cached + share.expected

    # --- lookups -------------------------------------------------------------

    def match(self, namespace: bytes, tokens: Tokens, max_blocks: int, /) -> PrefixMatch:
        blocks = self._store.index.match(namespace, tokens.tobytes(), max_blocks)
        evictable = sum(
            self._store.pool.state(block) in (BlockState.CACHED, BlockState.EXPECTED)
            for block in blocks
        )
        return len(blocks), evictable, blocks[-1] if blocks else NULL_BLOCK

    def partial_match(
        self, namespace: bytes, tokens: Tokens, match: PrefixMatch, /
    ) -> tuple[int, int]:
        blocks, _, end = self._possible(match, tokens)
        return self._store.index.partial_match(namespace, tokens.tobytes(), blocks, end)

    def forgotten_blocks(
        self, namespace: bytes, tokens: Tokens, match: PrefixMatch, max_blocks: int, /
    ) -> int:
        first, _, end = self._possible(match, tokens)
        known, size = self._store.evicted_before, self._block_tokens
        if len(known) == 0:
            return 0
        digest = self._store.index.digest(namespace, end if first > 0 else None)
        number = first
        while number < min(max_blocks, int(tokens.size) // size):
            digest = chain_digest(digest, tokens[number * size : (number + 1) * size].tobytes())
            if digest not in known:
                break
            number += 1
        return number - first

    def begins_elsewhere(self, namespace: bytes, tokens: Tokens, /) -> bool:
        return self._store.index.begins_elsewhere(namespace, tokens.tobytes())

    def pending_blocks(self, namespace: bytes, tokens: Tokens, max_blocks: int, /) -> int:
        return self._pending.longest(namespace, tokens.tobytes(), max_blocks)

    # --- the life of a holder ------------------------------------------------

    def is_live(self, sequence_id: int, /) -> bool:
        return sequence_id in self._holders

    def begin(
        self,
        sequence_id: int,
        namespace: bytes,
        tokens: Tokens,
        publish: bool,
        match: PrefixMatch,
        is_reuse: bool,
        kind: int,
        group: int,
        level: int,
        /,
    ) -> None:
        blocks, _, end = self._possible(match, tokens)
        require_in_range("kind", kind, len(HolderKind))
        require_in_range("group", group, GROUPS)
        require_in_range("level", level, LEVELS)
        self._require_new(sequence_id)
        owner = self._store.index.group_of(namespace)
        if owner not in (None, group):
            raise InvalidArgumentError("group", group, f"{owner}, the group of the namespace")
        hits = self._store.index.path(namespace, tokens.tobytes(), blocks, end)
        new_blocks = -(-int(tokens.size) // self._block_tokens) - len(hits)
        self._store.require_room(new_blocks, group, hits, HolderKind(kind))

        holder = Holder(
            holder_id=sequence_id,
            kind=HolderKind(kind),
            namespace=namespace,
            group=group,
            level=level,
            publish=publish,
            tokens=int32_array(tokens.tobytes()),
            table=int32_array(b""),
            prompt_tokens=int(tokens.size),
            computed_tokens=len(hits) * self._block_tokens,
            published_blocks=len(hits),
        )
        # Several requests at one time, such as the candidates of one prompt, are one use.
        is_new_use = is_reuse and bool(hits) and not self._store.pool.holders(hits[-1])
        for block in hits:
            self._store.hold(block, holder)
            if is_new_use:
                self._store.order.mark_reused(block)
        self._start(holder, hits, new_blocks)

    def append(self, sequence_id: int, token_id: int, /) -> int:
        require_token(token_id)
        holder = self._holder(sequence_id)
        if len(holder.tokens) == len(holder.table) * self._block_tokens:
            if self._store.obtainable(holder.group) == 0:
                return 1
            holder.table.extend(self._store.allocate(1, holder))
        holder.tokens.append(token_id)
        self._changed()
        return 0

    def commit(self, sequence_id: int, computed_tokens: int, /) -> None:
        holder = self._holder(sequence_id)
        require_progress(holder, computed_tokens)
        holder.computed_tokens = computed_tokens
        if computed_tokens >= holder.prompt_tokens:
            self._pending.discard(holder)
        if holder.publish:
            self._publish(holder, computed_tokens // self._block_tokens)
        self._changed()

    def release(self, sequence_id: int, /) -> bool:
        holder = self._holders.pop(sequence_id, None)
        if holder is None:
            return False
        self._pending.discard(holder)
        if holder.kind is HolderKind.SEQUENCE:
            self._live_sequences -= 1
            self._store.order.now += 1
        # From the tail up, as the order of eviction demands.
        for block in reversed(holder.table):
            self._store.let_go(block, holder)
        self._store.index.leave(holder.namespace)
        self._changed()
        return True

    def fork(self, parent_id: int, child_id: int, /) -> tuple[int, int] | None:
        parent = self._holder(parent_id)
        if parent.kind is not HolderKind.SEQUENCE:
            raise UnknownSequenceError(parent_id)
        self._require_new(child_id)
        require_computed(parent)
        full_blocks, rest_tokens = divmod(parent.computed_tokens, self._block_tokens)
        new_blocks = len(parent.table) - full_blocks
        self._store.require_room(new_blocks, parent.group, [], parent.kind)

        child = replace(parent, holder_id=child_id, tokens=parent.tokens[:], table=int32_array(b""))
        shared = parent.table[:full_blocks].tolist()
        for block in shared:
            self._store.hold(block, child)
        self._start(child, shared, new_blocks)
        return (parent.table[-1], child.table[-1]) if rest_tokens > 0 else None

    def block_table(self, sequence_id: int, /) -> bytes:
        return self._holder(sequence_id).table.tobytes()

    def tokens(self, sequence_id: int, /) -> bytes:
        return self._holder(sequence_id).tokens.tobytes()

    def num_tokens(self, sequence_id: int, /) -> int:
        return len(self._holder(sequence_id).tokens)

    def computed_tokens(self, sequence_id: int, /) -> int:
        return self._holder(sequence_id).computed_tokens

    def exclusive_blocks(self, sequence_id: int, /) -> int:
        table = self._holder(sequence_id).table
        return sum(len(self._store.pool.holders(block)) == 1 for block in table)

    def largest_holders(self, count: int, /) -> tuple[int, ...]:
        largest = heapq.nlargest(count, self._sequences(), key=lambda sequence: len(sequence.table))
        return tuple(sequence.holder_id for sequence in largest)

    # --- what is kept --------------------------------------------------------

    def set_group(self, group: int, floor_blocks: int, quota_blocks: int, /) -> None:
        require_in_range("group", group, GROUPS)
        require_at_least("floor_blocks", floor_blocks, 0)
        require_quota(quota_blocks)
        quota = None if quota_blocks == -1 else quota_blocks
        self._store.set_group(group, GroupLimits(floor_blocks, quota))
        self._changed()

    def set_expiry(self, level: int, tick: int, /) -> None:
        self._store.order.set_expiry(level, tick)
        self._changed()

    def evict(self, count: int, /) -> int:
        require_at_least("count", count, 0)
        evicted = self._store.evict(count)
        self._changed()
        return evicted

    def resize(self, num_blocks: int, /) -> list[tuple[int, int]]:
        moves = self._store.resize(num_blocks)
        destinations = dict(moves)
        for holder in self._holders.values():
            for number, block in enumerate(holder.table):
                holder.table[number] = destinations.get(block, block)
        self._changed()
        return moves

    def flush(self, namespace: bytes | None, /) -> tuple[int, int]:
        for holder in self._holders.values():
            if namespace is None or holder.namespace == namespace:
                self._pending.discard(holder)
                holder.publish = holder.is_indexed = False
        dropped = self._store.drop(namespace)
        self._changed()
        return dropped

    # --- what happened -------------------------------------------------------

    @property
    def record_events(self) -> bool:
        return self._store.events.is_wanted

    @record_events.setter
    def record_events(self, is_wanted: bool) -> None:
        self._store.events.want(is_wanted)

    def drain_events(self) -> list[CoreEvent]:
        return self._store.events.drain()

    def drain_samples(self) -> list[CoreSample]:
        return self._store.samples.drain()

    def runs(self) -> list[Run]:
        return [
            (
                node.namespace,
                node.parent if isinstance(node.parent, int) else None,
                (block,),
                tuple(int32_array(node.tokens)),
            )
            for block, node in self._store.index.nodes()
        ]

    def check(self) -> None:
        self._store.check()

    def audit(self) -> None:
        self._store.check()
        audit_core(self._store, self._pending, self._holders, self._block_tokens)

    # --- mechanism -----------------------------------------------------------

    def _holder(self, holder_id: int) -> Holder:
        try:
            return self._holders[holder_id]
        except KeyError:
            raise UnknownSequenceError(holder_id) from None

    def _sequences(self) -> Iterator[Holder]:
        return (h for h in self._holders.values() if h.kind is HolderKind.SEQUENCE)

    def _possible(self, match: PrefixMatch, tokens: Tokens) -> PrefixMatch:
        """The match, if it could be one of this core and these tokens."""
        most_blocks = int(tokens.size) // self._block_tokens
        require_possible(match, most_blocks, self._store.pool.num_blocks)
        return match

    def _require_new(self, holder_id: int) -> None:
        if holder_id in self._holders:
            raise DuplicateSequenceError(holder_id)

    def _start(self, holder: Holder, held: list[int], new_blocks: int) -> None:
        """Makes a holder live that holds some blocks already."""
        holder.table.extend(held)
        holder.table.extend(self._store.allocate(new_blocks, holder))
        self._holders[holder.holder_id] = holder
        self._live_sequences += holder.kind is HolderKind.SEQUENCE
        self._store.index.acquire(holder.namespace, holder.group)
        self._pending.add(holder)
        self._changed()

    def _publish(self, holder: Holder, full_blocks: int) -> None:
        """Gives the blocks up to `full_blocks` to the index, or takes those that it has."""
        table, first_new = holder.table, holder.published_blocks
        for number in range(holder.published_blocks, full_blocks):
            parent: Parent = table[number - 1] if number > 0 else holder.namespace
            tokens = holder.block_of_tokens(number, self._block_tokens)
            known = self._store.index.find(parent, tokens)
            if known is None:
                self._store.publish(table[number], holder, parent, tokens)
            else:
                self._store.hold(known, holder)
                self._store.let_go(table[number], holder)
                table[number] = known
                self._deduplicated += 1
                first_new = number + 1
        if first_new < full_blocks:
            size = self._block_tokens
            self._store.events.stored(
                holder.namespace,
                table[first_new - 1] if first_new > 0 else None,
                table[first_new:full_blocks],
                holder.tokens[first_new * size : full_blocks * size],
            )
        holder.published_blocks = max(holder.published_blocks, full_blocks)

    def _changed(self) -> None:
        self.version += 1
        self.check()
