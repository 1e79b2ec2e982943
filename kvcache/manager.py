"""The facade that a scheduler talks to."""

from __future__ import annotations

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
from kvcache.core import NO_MATCH, CoreChoice, CoreCounts, HolderKind, PrefixMatch, create_core
from kvcache.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    StalePlanError,
    UnknownSequenceError,
)
from kvcache.events import EventLog, IndexSnapshot, Stored
from kvcache.eviction import PolicyName
from kvcache.stats import CacheStats, Counters, FlushResult, MissReason

_REPORTED_HOLDERS = 8
_MAX_BLOCKS = 2**31 - 1  # a block id is an int32


class CacheManager:
    """Blocks for sequences, with prefixes shared through an index.

    `num_blocks` counts the null block 0. Not thread-safe: one scheduler owns it. Every
    operation that changes something checks the conservation of blocks before it returns.

    `policy` decides which cached blocks are evicted, see `kvcache.eviction`. `events` is told
    of every change of the index, see `kvcache.events`. `core` chooses the machine underneath,
    see `kvcache.core`; `core_name` tells which it is.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        *,
        policy: PolicyName = "reuse-aware",
        events: EventLog | None = None,
        core: CoreChoice = "auto",
    ) -> None:
        if not 2 <= num_blocks <= _MAX_BLOCKS:
            limit = f"at least 2 (the null block and one more) and at most {_MAX_BLOCKS}"
            raise InvalidArgumentError("num_blocks", num_blocks, limit)
        if block_tokens < 1:
            raise InvalidArgumentError("block_tokens", block_tokens, "at least 1")
        self.usable_blocks = num_blocks - 1  # all but the null block
        self.block_tokens = block_tokens
        self.core_name, self._core = create_core(
            core, num_blocks, block_tokens, policy, record_events=events is not None
        )
        self._events = events
        self._counters = Counters.zero()

    def __repr__(self) -> str:
        blocks = f"{self.usable_blocks} blocks of {self.block_tokens} tokens"
        return f"<CacheManager of {blocks}, {self.core_name} core>"

    # --- admission -----------------------------------------------------------

    def admit(self, request: AdmissionRequest) -> Admission:
        """Whether the sequence can start now. Pure: changes nothing, counts nothing."""
        needed = -(-request.token_ids.size // self.block_tokens)
        if needed > self.usable_blocks:
            limit_tokens = self.usable_blocks * self.block_tokens
            return NeverFits(needed, self.usable_blocks, limit_tokens)
        match = NO_MATCH
        if request.use_cache:
            match = self._match(request.namespace, request.token_ids)
        hit_blocks, evictable_hits, _ = match
        short = short_blocks(
            new_blocks=needed - hit_blocks,
            evictable_hits=evictable_hits,
            available=self._core.available_blocks(0),
            headroom=request.headroom_blocks,
            pool_is_idle=self._core.live_sequences == 0,
        )
        if short > 0:
            return NotNow(short, self._core.largest_holders(_REPORTED_HOLDERS))
        plan = AdmissionPlan(request, match, self._core.version)
        return Fits(hit_blocks * self.block_tokens, needed - hit_blocks, plan)

    def begin(self, fits: Fits) -> int:
        """Starts the sequence: it holds its hits and new blocks for all of its tokens.

        Answers the cached tokens, which need not be computed. A plan that is no longer fresh
        is made anew; raises StalePlanError if the sequence does not fit any more, and
        DuplicateSequenceError if its id is live.
        """
        request = fits.plan.request
        if self._core.is_live(request.sequence_id):
            raise DuplicateSequenceError(request.sequence_id)
        if fits.plan.version != self._core.version:
            answer = self.admit(request)
            if not isinstance(answer, Fits):
                short = answer.short_blocks if isinstance(answer, NotNow) else 0
                raise StalePlanError(request.sequence_id, short)
            fits = answer
        match = fits.plan.match
        self._count_lookup(request, match)
        self._core.begin(
            request.sequence_id,
            request.namespace,
            request.token_ids,
            request.publish,
            match,
            not request.resumed,
            HolderKind.SEQUENCE,
            0,
            0,
        )
        self._tell()
        return fits.cached_tokens

    def pending_prefix(self, request: AdmissionRequest) -> int:
        """Leading tokens that another sequence's prefill is about to make available.

        Whole blocks, counted from the first token, of the prompt of a live sequence of the
        namespace that publishes and has not computed its prompt yet; 0 if that is not more
        than the index has now. While it is not 0 it pays to let the request wait.
        """
        most = self._most_hits(request.token_ids)
        if not request.use_cache or most == 0:
            return 0
        common = self._core.pending_blocks(request.namespace, request.token_ids, most)
        if common == 0 or common <= self._match(request.namespace, request.token_ids)[0]:
            return 0
        return common * self.block_tokens

    def lookup(self, namespace: bytes, token_ids: NDArray[np.int32]) -> int:
        """Cached leading tokens that a request of `token_ids` would hit. Counts nothing."""
        return self._match(namespace, require_tokens(token_ids))[0] * self.block_tokens

    # --- a live sequence -----------------------------------------------------

    def append(self, sequence_id: int, token_id: int) -> int:
        """Adds one token and makes sure that it has a slot.

        Answers 0, or the number of blocks missing; then nothing has changed.
        """
        missing = self._core.append(sequence_id, token_id)
        self._tell()
        return missing

    def commit(self, sequence_id: int, computed_tokens: int) -> None:
        """K and V of the tokens [0, computed_tokens) are written.

        Full blocks go to the index, unless the sequence does not publish. Where the index has
        a block of the same tokens already, the sequence's table is rewritten to that block
        and its own copy is freed: read the table after every commit.
        """
        self._core.commit(sequence_id, computed_tokens)
        self._tell()

    def block_table(self, sequence_id: int) -> NDArray[np.int32]:
        """The blocks of the sequence in order, read-only; void after the next change."""
        return np.frombuffer(self._core.block_table(sequence_id), np.int32)

    def num_tokens(self, sequence_id: int) -> int:
        """Tokens of the sequence, computed or not."""
        return self._core.num_tokens(sequence_id)

    def computed_tokens(self, sequence_id: int) -> int:
        """Leading tokens whose K and V are written, cached ones included."""
        return self._core.computed_tokens(sequence_id)

    def recompute_tokens(self, sequence_id: int) -> int:
        """Tokens to compute again if the sequence is preempted and what it alone holds evicted.

        That is all of its tokens but those in blocks that others hold too.
        """
        tokens = self._core.num_tokens(sequence_id)
        blocks = -(-tokens // self.block_tokens)
        shared = blocks - self._core.exclusive_blocks(sequence_id)
        return max(0, tokens - shared * self.block_tokens)

    def exclusive_blocks(self, sequence_id: int) -> int:
        """Blocks that nobody else holds, its last ones: what preempting it frees."""
        return self._core.exclusive_blocks(sequence_id)

    def release(self, sequence_id: int) -> bool:
        """Ends the sequence: published blocks become evictable, the others free.

        False if the id is not live; so a second release does nothing.
        """
        return self._core.release(sequence_id)

    def preempt(self, sequence_id: int) -> None:
        """Takes all blocks back, to be given to others; the sequence may be admitted again."""
        if not self._core.release(sequence_id):
            raise UnknownSequenceError(sequence_id)
        self._counters.preemptions += 1

    # --- the whole -----------------------------------------------------------

    def flush(self, namespace: bytes | None) -> FlushResult:
        """Forgets what is cached in a namespace (None: in all).

        Live sequences keep their blocks, and publish nothing from now on: what they compute
        rests on what was forgotten.
        """
        result = FlushResult(*self._core.flush(namespace))
        self._tell()
        return result

    def stats(self) -> CacheStats:
        """Figures of this moment, O(1)."""
        core, counters = CoreCounts(*self._core.counts()), self._counters
        return CacheStats(
            total=self.usable_blocks,
            free=core.free,
            cached=core.cached,
            held=core.held,
            pinned=core.pinned,
            in_flight=core.loading + core.storing,
            reserved=core.reserved,
            shared=core.shared,
            live_sequences=core.live_sequences,
            lookup_tokens=counters.lookup_tokens,
            hit_tokens=counters.hit_tokens,
            resumed_hit_tokens=counters.resumed_hit_tokens,
            deduplicated_blocks=core.deduplicated,
            evicted_blocks=core.evicted,
            regretted_tokens=counters.regretted_tokens,
            preemptions=counters.preemptions,
            misses=MappingProxyType(counters.misses.copy()),
        )

    def snapshot(self) -> IndexSnapshot:
        """The whole index as of the last event, O(number of its tokens)."""
        number = 0 if self._events is None else self._events.last_number
        return IndexSnapshot(number, tuple(Stored(number, *run) for run in self._core.runs()))

    def check(self) -> None:
        """Conservation of blocks, O(1)."""
        self._core.check()

    def audit(self) -> None:
        """Full check of pool, index and sequences against each other, O(everything)."""
        self._core.audit()

    # --- mechanism -----------------------------------------------------------

    def _tell(self) -> None:
        """Passes on what has happened to the index."""
        if self._events is None:
            return
        for event in self._core.drain_events():
            match event:
                case "stored", namespace, parent, blocks, tokens:
                    self._events.stored(
                        namespace, parent, np.array(blocks, np.int32), np.array(tokens, np.int32)
                    )
                case "removed", removed:
                    self._events.removed(np.array(removed, np.int32))
                case "cleared", cleared:
                    self._events.cleared(cleared)

    def _most_hits(self, token_ids: NDArray[np.int32]) -> int:
        """Blocks that may be hit: the last token is always computed, for its logits."""
        return max(0, token_ids.size - 1) // self.block_tokens

    def _match(self, namespace: bytes, token_ids: NDArray[np.int32]) -> PrefixMatch:
        return self._core.match(namespace, token_ids, self._most_hits(token_ids))

    def _count_lookup(self, request: AdmissionRequest, match: PrefixMatch) -> None:
        counters = self._counters
        hit_blocks = match[0]
        if request.resumed:
            counters.resumed_hit_tokens += hit_blocks * self.block_tokens
            return
        if not request.use_cache:
            counters.misses[MissReason.DISABLED] += 1
            return
        counters.lookup_tokens += request.token_ids.size
        counters.hit_tokens += hit_blocks * self.block_tokens
        most = self._most_hits(request.token_ids)
        if most == 0:
            counters.misses[MissReason.TOO_SHORT] += 1
        elif hit_blocks < most:
            counters.misses[self._miss_reason(request, match, most)] += 1

    def _miss_reason(self, request: AdmissionRequest, match: PrefixMatch, most: int) -> MissReason:
        forgotten = self._core.forgotten_blocks(request.namespace, request.token_ids, match, most)
        if forgotten:
            self._counters.regretted_tokens += forgotten * self.block_tokens
            return MissReason.EVICTED
        if self._core.begins_elsewhere(request.namespace, request.token_ids):
            return MissReason.NAMESPACE
        return MissReason.DIVERGED
