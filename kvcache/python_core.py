"""The core in Python: slower than the native one by a factor, and its oracle in the tests."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from kvcache.audit import audit_ownership
from kvcache.errors import (
    ConservationError,
    DuplicateSequenceError,
    InvalidArgumentError,
    OutOfBlocksError,
    UnknownSequenceError,
)
from kvcache.events import EventLog, Run, run_of
from kvcache.eviction import EvictionPolicy
from kvcache.node import Match
from kvcache.pending import PendingPrefixes
from kvcache.pool import BlockPool, BlockState
from kvcache.radix import RadixIndex
from kvcache.regret import EvictionMemory
from kvcache.sequence import IntArray, LiveSequence

_INT32 = np.iinfo(np.int32)
_NO_MATCH = Match(None, 0, 0, 0)


class PythonCore:
    """BlockPool, RadixIndex and live sequences together. The contract is `CacheCore`."""

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        policy: EvictionPolicy,
        events: EventLog | None = None,
    ) -> None:
        self._block_tokens = block_tokens
        self._pool = BlockPool(num_blocks)
        self._index = RadixIndex(block_tokens, policy, EvictionMemory(num_blocks // 2))
        self._events = events
        self._pending = PendingPrefixes(block_tokens)
        self._sequences: dict[int, LiveSequence] = {}
        self._reserved = 0
        self._deduplicated = 0
        self._evicted = 0
        self.version = 0

    @property
    def available_blocks(self) -> int:
        return self._pool.free_blocks + self._pool.count(BlockState.CACHED)

    @property
    def live_sequences(self) -> int:
        return len(self._sequences)

    # --- lookups -------------------------------------------------------------

    def match(
        self, namespace: bytes, tokens: NDArray[np.int32], max_blocks: int, /
    ) -> tuple[int, int, Match]:
        match = self._index.match(namespace, tokens, max_blocks)
        return match.blocks, match.evictable_blocks, match

    def forgotten_blocks(
        self,
        namespace: bytes,
        tokens: NDArray[np.int32],
        match: tuple[int, int, object],
        max_blocks: int,
        /,
    ) -> int:
        return self._index.forgotten_blocks(namespace, tokens, _found(match), max_blocks)

    def begins_elsewhere(self, namespace: bytes, tokens: NDArray[np.int32], /) -> bool:
        return self._index.begins_elsewhere(namespace, tokens)

    def pending_blocks(
        self, namespace: bytes, tokens: NDArray[np.int32], max_blocks: int, /
    ) -> int:
        return self._pending.longest(namespace, tokens, max_blocks)

    # --- the life of a sequence ----------------------------------------------

    def is_live(self, sequence_id: int, /) -> bool:
        return sequence_id in self._sequences

    def begin(
        self,
        sequence_id: int,
        namespace: bytes,
        tokens: NDArray[np.int32],
        publish: bool,
        match: tuple[int, int, object],
        is_reuse: bool,
        /,
    ) -> None:
        if sequence_id in self._sequences:
            raise DuplicateSequenceError(sequence_id)
        found = _found(match)
        new_blocks = -(-int(tokens.size) // self._block_tokens) - found.blocks
        available = self.available_blocks - found.evictable_blocks
        if new_blocks > available:
            raise OutOfBlocksError(new_blocks, available)
        node, hits = self._index.lock(found, is_reuse=is_reuse)
        self._pool.hold(hits, sequence_id)
        self._make_room(new_blocks)
        new = self._pool.allocate(new_blocks, sequence_id)
        sequence = LiveSequence(
            sequence_id=sequence_id,
            namespace=namespace,
            publish=publish,
            tokens=IntArray(tokens),
            table=IntArray(np.concatenate((hits, new))),
            prompt_tokens=int(tokens.size),
            computed_tokens=found.blocks * self._block_tokens,
            published_blocks=found.blocks,
            node=node,
        )
        self._sequences[sequence_id] = sequence
        self._pending.add(sequence)
        self._reserved += sequence.unwritten_blocks(self._block_tokens)
        self._changed()

    def append(self, sequence_id: int, token_id: int, /) -> int:
        if not _INT32.min <= token_id <= _INT32.max:
            raise InvalidArgumentError("token_id", token_id, "an int32 number")
        sequence = self._sequence(sequence_id)
        if sequence.tokens.size == sequence.table.size * self._block_tokens:
            if self.available_blocks == 0:
                return 1
            self._make_room(1)
            sequence.table.append(int(self._pool.allocate(1, sequence_id)[0]))
            self._reserved += 1
        sequence.tokens.append(token_id)
        self._changed()
        return 0

    def commit(self, sequence_id: int, computed_tokens: int, /) -> None:
        sequence = self._sequence(sequence_id)
        if not sequence.computed_tokens <= computed_tokens <= sequence.tokens.size:
            raise InvalidArgumentError(
                "computed_tokens",
                computed_tokens,
                f"from {sequence.computed_tokens} (computed before) to "
                f"{sequence.tokens.size} (the tokens of sequence {sequence_id})",
            )
        if sequence.computed_tokens < sequence.prompt_tokens <= computed_tokens:
            self._pending.discard(sequence)
        before = sequence.unwritten_blocks(self._block_tokens)
        sequence.computed_tokens = computed_tokens
        self._reserved += sequence.unwritten_blocks(self._block_tokens) - before
        full_blocks = computed_tokens // self._block_tokens
        if sequence.publish and full_blocks > sequence.published_blocks:
            self._publish(sequence, full_blocks)
        self._changed()

    def release(self, sequence_id: int, /) -> bool:
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return False
        self._pending.discard(sequence)
        self._reserved -= sequence.unwritten_blocks(self._block_tokens)
        self._index.unlock(sequence.node)
        self._pool.release(sequence.table.view, sequence_id)
        self._changed()
        return True

    def block_table(self, sequence_id: int, /) -> NDArray[np.int32]:
        view = self._sequence(sequence_id).table.view
        view.flags.writeable = False
        return view

    def num_tokens(self, sequence_id: int, /) -> int:
        return self._sequence(sequence_id).tokens.size

    def computed_tokens(self, sequence_id: int, /) -> int:
        return self._sequence(sequence_id).computed_tokens

    def exclusive_blocks(self, sequence_id: int, /) -> int:
        return self._pool.exclusive_blocks(self._sequence(sequence_id).table.view)

    def largest_holders(self, count: int, /) -> tuple[int, ...]:
        largest = heapq.nlargest(
            count, self._sequences.values(), key=lambda sequence: sequence.table.size
        )
        return tuple(sequence.sequence_id for sequence in largest)

    # --- the whole -----------------------------------------------------------

    def flush(self, namespace: bytes | None, /) -> tuple[int, int]:
        dropped = self._index.drop(namespace)
        cached_before = self._pool.count(BlockState.CACHED)
        self._pool.unpublish(dropped, "flush")
        freed = cached_before - self._pool.count(BlockState.CACHED)
        for sequence in self._sequences.values():
            if namespace is None or sequence.namespace == namespace:
                self._pending.discard(sequence)
                sequence.publish = False
                sequence.node = None
        if self._events is not None:
            self._events.cleared(namespace)
        self._changed()
        return freed, int(dropped.size) - freed

    def counts(self) -> tuple[int, ...]:
        return (
            self._pool.free_blocks,
            self._pool.count(BlockState.CACHED),
            self._pool.count(BlockState.HELD),
            self._pool.shared_blocks,
            self._reserved,
            len(self._sequences),
            self._deduplicated,
            self._evicted,
        )

    def runs(self) -> list[Run]:
        return [run_of(node, self._block_tokens) for node in self._index.nodes()]

    def check(self) -> None:
        self._pool.check()
        cached = self._pool.count(BlockState.CACHED)
        if cached != self._index.evictable_blocks:
            raise ConservationError(
                f"the pool has {cached} cached blocks, "
                f"the index {self._index.evictable_blocks} evictable ones"
            )

    def audit(self) -> None:
        self.check()
        self._pool.audit()
        self._index.audit()
        audit_ownership(self._pool, self._index, self._sequences, self._block_tokens)
        reserved = sum(s.unwritten_blocks(self._block_tokens) for s in self._sequences.values())
        if reserved != self._reserved:
            raise ConservationError(f"{reserved} blocks are reserved, counted {self._reserved}")

    # --- mechanism -----------------------------------------------------------

    def _sequence(self, sequence_id: int) -> LiveSequence:
        try:
            return self._sequences[sequence_id]
        except KeyError:
            raise UnknownSequenceError(sequence_id) from None

    def _make_room(self, count: int) -> None:
        """Evicts until `count` blocks are free. The caller knows that there are enough."""
        short = count - self._pool.free_blocks
        if short > 0:
            victims = self._index.evict(short)
            self._pool.unpublish(victims, "eviction")
            self._evicted += int(victims.size)
            if self._events is not None:
                self._events.removed(victims)

    def _publish(self, sequence: LiveSequence, full_blocks: int) -> None:
        start, size = sequence.published_blocks, self._block_tokens
        table = sequence.table.view
        own = table[start:full_blocks].copy()
        tokens = sequence.tokens.view[start * size : full_blocks * size]
        sequence.node, known = self._index.insert(sequence.namespace, sequence.node, tokens, own)
        duplicates = int(known.size)
        if duplicates:
            self._pool.hold(known, sequence.sequence_id)
            self._pool.release(own[:duplicates], sequence.sequence_id)
            table[start : start + duplicates] = known
            self._deduplicated += duplicates
        if duplicates < own.size:
            self._pool.publish(own[duplicates:], sequence.sequence_id)
            if self._events is not None:
                first = start + duplicates
                parent = int(table[first - 1]) if first else None
                new_tokens = tokens[duplicates * size :]
                self._events.stored(sequence.namespace, parent, own[duplicates:], new_tokens)
        sequence.published_blocks = full_blocks

    def _changed(self) -> None:
        self.version += 1
        self.check()


def _found(match: tuple[int, int, object]) -> Match:
    """The radix tree's match inside; what matched nothing need not come from this core."""
    found = match[2]
    return found if isinstance(found, Match) else _NO_MATCH
