"""The facade that a scheduler talks to."""

from __future__ import annotations

import heapq
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvcache.admission import (
    Admission,
    AdmissionPlan,
    AdmissionRequest,
    Fits,
    NeverFits,
    NotNow,
    require_tokens,
    short_blocks,
)
from kvcache.audit import audit_ownership
from kvcache.errors import (
    ConservationError,
    DuplicateSequenceError,
    InvalidArgumentError,
    StalePlanError,
    UnknownSequenceError,
)
from kvcache.events import EventLog, IndexSnapshot, take_snapshot
from kvcache.eviction import PolicyName, create_policy
from kvcache.node import Match
from kvcache.pending import PendingPrefixes
from kvcache.pool import BlockPool, BlockState
from kvcache.radix import RadixIndex
from kvcache.regret import EvictionMemory
from kvcache.sequence import IntArray, LiveSequence
from kvcache.stats import CacheStats, Counters, FlushResult, MissReason

_REPORTED_HOLDERS = 8
_NO_MATCH = Match(None, 0, 0, 0)


class CacheManager:
    """Blocks for sequences, with prefixes shared through an index.

    `num_blocks` counts the null block 0. Not thread-safe: one scheduler owns it. Every
    operation that changes something checks the conservation of blocks before it returns.
    `policy` decides which cached blocks are evicted, see `kvcache.eviction`. `events` is told
    of every change of the index, see `kvcache.events`.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        *,
        policy: PolicyName = "reuse-aware",
        events: EventLog | None = None,
    ) -> None:
        if block_tokens < 1:
            raise InvalidArgumentError("block_tokens", block_tokens, "at least 1")
        self.block_tokens = block_tokens
        self._pool = BlockPool(num_blocks)
        self._index = RadixIndex(
            block_tokens, create_policy(policy, num_blocks - 1), EvictionMemory(num_blocks)
        )
        self._pending = PendingPrefixes(block_tokens)
        self._events = events
        self._sequences: dict[int, LiveSequence] = {}
        self._counters = Counters.zero()
        self._reserved = 0
        self._version = 0  # grows with every change, so that a plan knows whether it is stale

    @property
    def usable_blocks(self) -> int:
        """All blocks but the null block."""
        return self._pool.num_blocks - 1

    # --- admission -----------------------------------------------------------

    def admit(self, request: AdmissionRequest) -> Admission:
        """Whether the sequence can start now. Pure: changes nothing, counts nothing."""
        needed = self._blocks_for(request.token_ids.size)
        if needed > self.usable_blocks:
            limit_tokens = self.usable_blocks * self.block_tokens
            return NeverFits(needed, self.usable_blocks, limit_tokens)
        match = _NO_MATCH
        if request.use_cache:
            match = self._match(request.namespace, request.token_ids)
        short = short_blocks(
            needed=needed,
            match=match,
            available=self._pool.free_blocks + self._pool.count(BlockState.CACHED),
            headroom=request.headroom_blocks,
            pool_is_idle=not self._sequences,
        )
        if short > 0:
            return NotNow(short, self._largest_holders())
        plan = AdmissionPlan(request, match, self._version)
        return Fits(match.blocks * self.block_tokens, needed - match.blocks, plan)

    def begin(self, fits: Fits) -> int:
        """Starts the sequence: it holds its hits and new blocks for all of its tokens.

        Answers the cached tokens, which need not be computed. A plan that is no longer fresh
        is made anew; raises StalePlanError if the sequence does not fit any more, and
        DuplicateSequenceError if its id is live.
        """
        request = fits.plan.request
        if request.sequence_id in self._sequences:
            raise DuplicateSequenceError(request.sequence_id)
        if fits.plan.version != self._version:
            answer = self.admit(request)
            if not isinstance(answer, Fits):
                short = answer.short_blocks if isinstance(answer, NotNow) else 0
                raise StalePlanError(request.sequence_id, short)
            fits = answer
        match = fits.plan.match
        self._count_lookup(request, match)
        node, hits = self._index.lock(match, is_reuse=not request.resumed)
        self._pool.hold(hits, request.sequence_id)
        self._make_room(fits.new_blocks)
        new = self._pool.allocate(fits.new_blocks, request.sequence_id)
        cached_tokens = match.blocks * self.block_tokens
        sequence = LiveSequence(
            sequence_id=request.sequence_id,
            namespace=request.namespace,
            publish=request.publish,
            tokens=IntArray(request.token_ids),
            table=IntArray(np.concatenate((hits, new))),
            prompt_tokens=int(request.token_ids.size),
            computed_tokens=cached_tokens,
            published_blocks=match.blocks,
            node=node,
        )
        self._sequences[request.sequence_id] = sequence
        self._pending.add(sequence)
        self._reserved += sequence.unwritten_blocks(self.block_tokens)
        self._changed()
        return cached_tokens

    def pending_prefix(self, request: AdmissionRequest) -> int:
        """Leading tokens that another sequence's prefill is about to make available.

        Whole blocks, counted from the first token, of the prompt of a live sequence of the
        namespace that publishes and has not computed its prompt yet; 0 if that is not more
        than the index has now. While it is not 0 it pays to let the request wait.
        """
        most = self._most_hits(request.token_ids)
        if not request.use_cache or most == 0:
            return 0
        common = self._pending.longest(request.namespace, request.token_ids, most)
        if common == 0 or common <= self._match(request.namespace, request.token_ids).blocks:
            return 0
        return common * self.block_tokens

    def lookup(self, namespace: bytes, token_ids: NDArray[np.int32]) -> int:
        """Cached leading tokens that a request of `token_ids` would hit. Counts nothing."""
        require_tokens(token_ids)
        return self._match(namespace, token_ids).blocks * self.block_tokens

    # --- a live sequence -----------------------------------------------------

    def append(self, sequence_id: int, token_id: int) -> int:
        """Adds one token and makes sure that it has a slot.

        Answers 0, or the number of blocks missing; then nothing has changed.
        """
        sequence = self._sequence(sequence_id)
        if sequence.tokens.size == sequence.table.size * self.block_tokens:
            if self._pool.free_blocks == 0 and self._pool.count(BlockState.CACHED) == 0:
                return 1
            self._make_room(1)
            sequence.table.append(int(self._pool.allocate(1, sequence_id)[0]))
            self._reserved += 1
        sequence.tokens.append(token_id)
        self._changed()
        return 0

    def commit(self, sequence_id: int, computed_tokens: int) -> None:
        """K and V of the tokens [0, computed_tokens) are written.

        Full blocks go to the index, unless the sequence does not publish. Where the index has
        a block of the same tokens already, the sequence's table is rewritten to that block
        and its own copy is freed: read the table after every commit.
        """
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
        before = sequence.unwritten_blocks(self.block_tokens)
        sequence.computed_tokens = computed_tokens
        self._reserved += sequence.unwritten_blocks(self.block_tokens) - before
        full_blocks = computed_tokens // self.block_tokens
        if sequence.publish and full_blocks > sequence.published_blocks:
            self._publish(sequence, full_blocks)
        self._changed()

    def block_table(self, sequence_id: int) -> NDArray[np.int32]:
        """The blocks of the sequence in order, read-only; void after the next change."""
        view = self._sequence(sequence_id).table.view
        view.flags.writeable = False
        return view

    def num_tokens(self, sequence_id: int) -> int:
        """Tokens of the sequence, computed or not."""
        return self._sequence(sequence_id).tokens.size

    def computed_tokens(self, sequence_id: int) -> int:
        """Leading tokens whose K and V are written, cached ones included."""
        return self._sequence(sequence_id).computed_tokens

    def recompute_tokens(self, sequence_id: int) -> int:
        """Tokens to compute again if the sequence is preempted and what it alone holds evicted.

        That is all of its tokens but those in blocks that others hold too.
        """
        sequence = self._sequence(sequence_id)
        shared = sequence.table.size - self._pool.exclusive_blocks(sequence.table.view)
        return max(0, sequence.tokens.size - shared * self.block_tokens)

    def release(self, sequence_id: int) -> bool:
        """Ends the sequence: published blocks become evictable, the others free.

        False if the id is not live; so a second release does nothing.
        """
        sequence = self._sequences.pop(sequence_id, None)
        if sequence is None:
            return False
        self._pending.discard(sequence)
        self._reserved -= sequence.unwritten_blocks(self.block_tokens)
        self._index.unlock(sequence.node)
        self._pool.release(sequence.table.view, sequence_id)
        self._changed()
        return True

    def preempt(self, sequence_id: int) -> None:
        """Takes all blocks back, to be given to others; the sequence may be admitted again."""
        if not self.release(sequence_id):
            raise UnknownSequenceError(sequence_id)
        self._counters.preemptions += 1

    # --- the whole -----------------------------------------------------------

    def flush(self, namespace: bytes | None) -> FlushResult:
        """Forgets what is cached in a namespace (None: in all).

        Live sequences keep their blocks, and publish nothing from now on: what they compute
        rests on what was forgotten.
        """
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
        return FlushResult(freed, int(dropped.size) - freed)

    def stats(self) -> CacheStats:
        """Figures of this moment, O(1)."""
        pool, counters = self._pool, self._counters
        return CacheStats(
            total=self.usable_blocks,
            free=pool.free_blocks,
            cached=pool.count(BlockState.CACHED),
            held=pool.count(BlockState.HELD),
            pinned=pool.count(BlockState.PINNED),
            in_flight=pool.count(BlockState.LOADING) + pool.count(BlockState.STORING),
            reserved=self._reserved,
            shared=pool.shared_blocks,
            live_sequences=len(self._sequences),
            lookup_tokens=counters.lookup_tokens,
            hit_tokens=counters.hit_tokens,
            resumed_hit_tokens=counters.resumed_hit_tokens,
            deduplicated_blocks=counters.deduplicated_blocks,
            evicted_blocks=counters.evicted_blocks,
            regretted_tokens=counters.regretted_tokens,
            preemptions=counters.preemptions,
            misses=MappingProxyType(counters.misses.copy()),
        )

    def snapshot(self) -> IndexSnapshot:
        """The whole index as of the last event, O(number of its tokens)."""
        number = 0 if self._events is None else self._events.last_number
        return take_snapshot(self._index.nodes(), number, self.block_tokens)

    def check(self) -> None:
        """Conservation, O(1); and pool and index agree on what can be evicted."""
        self._pool.check()
        cached = self._pool.count(BlockState.CACHED)
        if cached != self._index.evictable_blocks:
            raise ConservationError(
                f"the pool has {cached} cached blocks, "
                f"the index {self._index.evictable_blocks} evictable ones"
            )

    def audit(self) -> None:
        """Full check of pool, index and sequences against each other, O(everything)."""
        self.check()
        self._pool.audit()
        self._index.audit()
        audit_ownership(self._pool, self._index, self._sequences, self.block_tokens)
        reserved = sum(s.unwritten_blocks(self.block_tokens) for s in self._sequences.values())
        if reserved != self._reserved:
            raise ConservationError(f"{reserved} blocks are reserved, counted {self._reserved}")

    # --- mechanism -----------------------------------------------------------

    def _sequence(self, sequence_id: int) -> LiveSequence:
        try:
            return self._sequences[sequence_id]
        except KeyError:
            raise UnknownSequenceError(sequence_id) from None

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def _most_hits(self, token_ids: NDArray[np.int32]) -> int:
        """Blocks that may be hit: the last token is always computed, for its logits."""
        return max(0, int(token_ids.size) - 1) // self.block_tokens

    def _match(self, namespace: bytes, token_ids: NDArray[np.int32]) -> Match:
        return self._index.match(namespace, token_ids, self._most_hits(token_ids))

    def _make_room(self, count: int) -> None:
        """Evicts until `count` blocks are free. The caller knows that there are enough."""
        short = count - self._pool.free_blocks
        if short > 0:
            victims = self._index.evict(short)
            self._pool.unpublish(victims, "eviction")
            self._counters.evicted_blocks += int(victims.size)
            if self._events is not None:
                self._events.removed(victims)

    def _publish(self, sequence: LiveSequence, full_blocks: int) -> None:
        start = sequence.published_blocks
        table = sequence.table.view
        own = table[start:full_blocks].copy()
        tokens = sequence.tokens.view[start * self.block_tokens : full_blocks * self.block_tokens]
        sequence.node, known = self._index.insert(sequence.namespace, sequence.node, tokens, own)
        duplicates = int(known.size)
        if duplicates:
            self._pool.hold(known, sequence.sequence_id)
            self._pool.release(own[:duplicates], sequence.sequence_id)
            table[start : start + duplicates] = known
            self._counters.deduplicated_blocks += duplicates
        if duplicates < own.size:
            self._pool.publish(own[duplicates:], sequence.sequence_id)
            if self._events is not None:
                first = start + duplicates
                parent = int(table[first - 1]) if first else None
                new_tokens = tokens[duplicates * self.block_tokens :]
                self._events.stored(sequence.namespace, parent, own[duplicates:], new_tokens)
        sequence.published_blocks = full_blocks

    def _largest_holders(self) -> tuple[int, ...]:
        largest = heapq.nlargest(
            _REPORTED_HOLDERS, self._sequences.values(), key=lambda sequence: sequence.table.size
        )
        return tuple(sequence.sequence_id for sequence in largest)

    def _count_lookup(self, request: AdmissionRequest, match: Match) -> None:
        counters = self._counters
        hit_tokens = match.blocks * self.block_tokens
        if request.resumed:
            counters.resumed_hit_tokens += hit_tokens
            return
        if not request.use_cache:
            counters.misses[MissReason.DISABLED] += 1
            return
        counters.lookup_tokens += int(request.token_ids.size)
        counters.hit_tokens += hit_tokens
        most = self._most_hits(request.token_ids)
        if most == 0:
            counters.misses[MissReason.TOO_SHORT] += 1
            return
        if match.blocks == most:
            return
        forgotten = self._index.forgotten_blocks(request.namespace, request.token_ids, match, most)
        if forgotten:
            counters.regretted_tokens += forgotten * self.block_tokens
            counters.misses[MissReason.EVICTED] += 1
        elif self._index.begins_elsewhere(request.namespace, request.token_ids):
            counters.misses[MissReason.NAMESPACE] += 1
        else:
            counters.misses[MissReason.DIVERGED] += 1

    def _changed(self) -> None:
        self._version += 1
        self.check()
