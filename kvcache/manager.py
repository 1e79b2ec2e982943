"""The facade that a scheduler talks to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from operator import index
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvcache.accounting import Accounting
from kvcache.admission import (
    SEQUENCE_ID_LIMIT,
    Admission,
    AdmissionRequest,
    Fits,
    most_hits,
    require_namespace,
    require_tokens,
)
from kvcache.core import CoreChoice, CoreCounts, HolderKind, create_core
from kvcache.core.eviction import PolicyName
from kvcache.core_time import FOR_EVER, CoreTime
from kvcache.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    UnknownSequenceError,
)
from kvcache.events import EventLog, IndexListener, IndexSnapshot, Stored
from kvcache.expectations import Expectations
from kvcache.feed import IndexFeed
from kvcache.figures import cache_stats
from kvcache.fragmentation import Fragmentation, duplicate_blocks
from kvcache.gate import Gate
from kvcache.histograms import BlockHistograms
from kvcache.holders import Holders
from kvcache.leases import Leases, LoadLease, Pin, StoreLease
from kvcache.memory import BlockMemory
from kvcache.preemption import PreemptionMode
from kvcache.room import Room
from kvcache.stats import CacheStats, FlushResult, ResizeResult, TenantStats
from kvcache.tenant_ledger import TenantLedger
from kvcache.tenants import Tenants, TenantShare

_MAX_BLOCKS = 2**31 - 1  # a block id is an int32
_MAX_BLOCK_TOKENS = 2**31 - 1
_NO_TENANTS: Mapping[str, TenantShare] = MappingProxyType({})


class CacheManager:
    """Blocks for sequences, with prefixes shared through an index.

    `num_blocks` counts the null block 0. Not thread-safe: one scheduler owns it. An operation
    that raises has changed nothing, unless a listener or `memory` has raised; each that changes
    something checks the conservation of blocks before it returns. Sequence ids are the caller's,
    below 2**62.

    `policy` says which cached blocks are evicted first, see `kvcache.core.eviction`; `core` chooses
    the machine underneath, see `kvcache.core`. `events` is the first listener. `memory` is where
    contents are copied when a sequence forks or the pool is resized; a simulation needs none.
    With one, cached blocks that agree in part are reused, from `partial_reuse_tokens` common
    tokens on (None: never). `tenants` have shares of their own, see `kvcache.tenants`.
    `retention_ttl_seconds` says how long each retention level of requests lasts after the last
    use. `clock` gives seconds, for all deadlines.
    """

    def __init__(
        self,
        num_blocks: int,
        block_tokens: int,
        *,
        policy: PolicyName = "reuse-aware",
        core: CoreChoice = "auto",
        events: EventLog | None = None,
        memory: BlockMemory | None = None,
        tenants: Mapping[str, TenantShare] = _NO_TENANTS,
        retention_ttl_seconds: Sequence[float | None] = FOR_EVER,
        partial_reuse_tokens: int | None = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        _require_blocks(num_blocks)
        if not 1 <= block_tokens <= _MAX_BLOCK_TOKENS:
            limit = f"at least 1 and at most {_MAX_BLOCK_TOKENS}"
            raise InvalidArgumentError("block_tokens", block_tokens, limit)
        if partial_reuse_tokens is not None and partial_reuse_tokens < 1:
            limit = "at least 1, or None"
            raise InvalidArgumentError("partial_reuse_tokens", partial_reuse_tokens, limit)
        self.block_tokens = block_tokens
        self._tenants = Tenants(tenants, num_blocks - 1)
        self.core_name, self._core = create_core(core, num_blocks, block_tokens, policy)
        self._tenants.install(self._core)
        self._time = CoreTime(self._core, clock, retention_ttl_seconds)
        self._memory = memory
        self._events = events
        self._feed = IndexFeed(self._core, memory)
        if events is not None:
            self._feed.add(events)
        self._live: dict[int, AdmissionRequest] = {}
        holders = Holders(self._core, block_tokens)
        self._expectations = Expectations(self._core, holders)
        self._ledger = TenantLedger(self._core, self._tenants)
        self._room = Room(
            self._core, num_blocks - 1, self._tenants, self._expectations, self._ledger
        )
        self._leases = Leases(self._core, holders, self._room, clock)
        self._accounting = Accounting(self._core, block_tokens)
        self._gate = Gate(
            self._core,
            block_tokens,
            self._room,
            self._accounting,
            self._ledger,
            partial_reuse_tokens=None if memory is None else partial_reuse_tokens,
            expire=self.expire,
        )

    def __repr__(self) -> str:
        blocks = f"{self.usable_blocks} blocks of {self.block_tokens} tokens"
        return f"<CacheManager of {blocks}, {self.core_name} core>"

    @property
    def usable_blocks(self) -> int:
        """All blocks but the null block."""
        return self._room.usable_blocks

    # --- admission -----------------------------------------------------------

    def admit(self, request: AdmissionRequest) -> Admission:
        """Whether the sequence can start now.

        Changes nothing and counts nothing; but where blocks are short, what is over by its
        deadline is ended first. Raises InvalidArgumentError for the namespace of another tenant.
        """
        return self._gate.admit(request)

    def begin(self, fits: Fits) -> int:
        """Starts the sequence: it holds its hits and new blocks for all of its tokens.

        Answers the cached tokens, which need not be computed. A plan that is no longer fresh
        is made anew; raises StalePlanError if the sequence does not fit any more, and
        DuplicateSequenceError if its id is live.
        """
        request = fits.plan.request
        if request.sequence_id in self._live:
            raise DuplicateSequenceError(request.sequence_id)
        self._time.expire_retention()
        fits = self._gate.begin(fits)
        self._live[request.sequence_id] = request
        if self._expectations:
            self._expectations.end(request.sequence_id)
        if fits.plan.partial[1]:
            self._reuse_partial(fits)
        elif self._feed.has_listeners:
            self._feed.tell()
        return fits.cached_tokens

    def pending_prefix(self, request: AdmissionRequest) -> int:
        """Leading tokens that are about to become available: worth waiting for, if not 0.

        Whole blocks, counted from the first token, of the prompt of a publishing sequence of
        the namespace that has not computed it yet, or of a load; 0 if the index has as many.
        """
        most = most_hits(request.token_ids, self.block_tokens)
        if not request.use_cache or most == 0:
            return 0
        pending = self._core.pending_blocks(request.namespace, request.token_ids, most)
        if not pending:
            return 0
        cached = self._core.match(request.namespace, request.token_ids, most)[0]
        return pending * self.block_tokens if pending > cached else 0

    def lookup(self, namespace: bytes, token_ids: NDArray[np.int32]) -> int:
        """Cached leading tokens, whole blocks, that a request would hit. Counts nothing."""
        require_namespace(namespace)
        tokens = require_tokens(token_ids)
        most = most_hits(tokens, self.block_tokens)
        return self._core.match(namespace, tokens, most)[0] * self.block_tokens

    def expect(self, request: AdmissionRequest) -> int:
        """Keeps what a waiting request will hit, until it begins or blocks run out.

        Answers the tokens kept. Then the newest expectations are let go first; a second call
        for the same sequence makes a new one.
        """
        group = self._room.group_of(request.tenant, request.namespace)
        return self._expectations.expect(request, group)

    def unexpect(self, sequence_id: int) -> bool:
        """Ends an expectation; False if there is none (any more)."""
        return self._expectations.end_waiting(sequence_id)

    # --- a live sequence -----------------------------------------------------

    def append(self, sequence_id: int, token_id: int) -> int:
        """Adds one token and makes sure that it has a slot.

        Answers 0, or the number of blocks missing; then nothing has changed.
        """
        if sequence_id not in self._live:  # the core would let a pin grow
            raise UnknownSequenceError(sequence_id)
        is_counted = self._tenants.are_many and self._is_full(sequence_id)
        short = 1 if is_counted else self._core.append(sequence_id, token_id)
        if short:
            group = self._tenants.group_of(self._live_request(sequence_id).tenant)
            short = self._gate.append(sequence_id, token_id, group)
        if self._feed.has_listeners:
            self._feed.tell()
        return short

    def commit(self, sequence_id: int, computed_tokens: int) -> None:
        """K and V of the tokens [0, computed_tokens) are written.

        Full blocks go to the index, unless the sequence does not publish. Where the index has
        a block of the same tokens already, the sequence's table is rewritten to that block
        and its own copy is freed: read the table after every commit.
        """
        if sequence_id not in self._live:
            raise UnknownSequenceError(sequence_id)
        self._core.commit(sequence_id, computed_tokens)
        if self._feed.has_listeners:
            self._feed.tell()

    def block_table(self, sequence_id: int) -> NDArray[np.int32]:
        """The blocks of the sequence in order, read-only; void after the next change."""
        return np.frombuffer(self._core.block_table(sequence_id), np.int32)

    def num_tokens(self, sequence_id: int) -> int:
        """Tokens of the sequence, computed or not."""
        return self._core.num_tokens(sequence_id)

    def computed_tokens(self, sequence_id: int) -> int:
        """Leading tokens whose K and V are written, cached ones included."""
        return self._core.computed_tokens(sequence_id)

    def exclusive_blocks(self, sequence_id: int) -> int:
        """Blocks of the sequence that nobody else holds: what preempting it frees."""
        return self._core.exclusive_blocks(sequence_id)

    def fork(self, parent_id: int, child_id: int) -> None:
        """Starts a sequence with the tokens and the progress of another, for n > 1 or beams.

        They share the full computed blocks; what the last one has computed is copied at once.
        Raises UnknownSequenceError, DuplicateSequenceError, InvalidArgumentError when more than
        the parent's last token is not computed, and OutOfBlocksError.
        """
        if not 0 <= index(child_id) < SEQUENCE_ID_LIMIT:
            raise InvalidArgumentError("child_id", child_id, f"from 0 to {SEQUENCE_ID_LIMIT - 1}")
        parent = self._live_request(parent_id)
        group = self._tenants.group_of(parent.tenant)
        copy = self._room.make(group, lambda: self._core.fork(parent_id, child_id))
        self._live[child_id] = replace(parent, sequence_id=child_id)
        self._accounting.forks += 1
        self._feed.tell([] if copy is None else [copy])

    def release(self, sequence_id: int) -> bool:
        """Ends the sequence: published blocks become evictable, the others free.

        False if the id is not live; so a second release does nothing.
        """
        if self._live.pop(sequence_id, None) is None:
            return False
        self._core.release(sequence_id)
        self._time.note()
        return True

    def preempt(
        self, sequence_id: int, *, keep_blocks: int = 0, swapped: bool = False
    ) -> PreemptionMode:
        """Takes the blocks back, to be given to others; the sequence may be admitted again.

        With `keep_blocks` only the tail is taken: as many of its leading published blocks are
        expected (see `expect`) until it begins again, and are the last that are let go when
        blocks run out. `swapped` says, for the statistics, that contents are kept elsewhere.
        Answers what it was: not a trim where nothing could be kept.
        Raises UnknownSequenceError for an id that is not live.
        """
        request = self._live_request(sequence_id)
        if keep_blocks < 0:
            raise InvalidArgumentError("keep_blocks", keep_blocks, "at least 0")
        group = self._tenants.group_of(request.tenant)
        is_kept = keep_blocks > 0 and self._expectations.trim(request, group, keep_blocks)
        mode = PreemptionMode.TRIM if is_kept else PreemptionMode.RECOMPUTE
        if swapped:
            mode = PreemptionMode.SWAP
        self._accounting.preempted(request, mode, self._core.computed_tokens(sequence_id))
        self.release(sequence_id)
        return mode

    def forget(self, sequence_id: int) -> None:
        """A waiting or preempted sequence will not begin: nothing is kept for it any more."""
        self._expectations.end(sequence_id)
        self._accounting.forget(sequence_id)

    # --- pins and transfers --------------------------------------------------

    def pin(self, namespace: bytes, token_ids: NDArray[np.int32], seconds: float) -> Pin:
        """Keeps the cached part of a prefix, whole blocks, from eviction for so long.

        A prefix of which nothing is cached gives a pin of 0 tokens, which is over at once.
        """
        require_namespace(namespace)
        return self._leases.pin(namespace, require_tokens(token_ids), seconds)

    def unpin(self, pin_id: int) -> bool:
        """Ends a pin; False if it is over already."""
        return self._leases.end(pin_id, HolderKind.PIN)

    def begin_load(
        self, namespace: bytes, token_ids: NDArray[np.int32], seconds: float, tenant: str = ""
    ) -> LoadLease | None:
        """Takes blocks to be filled from outside, behind what is cached of a prefix.

        Whole blocks; a rest of the tokens is left out. None when all is cached or blocks are
        short. Raises InvalidArgumentError for the namespace of another tenant.
        """
        require_namespace(namespace)
        lease = self._leases.begin_load(namespace, require_tokens(token_ids), seconds, tenant)
        self._feed.tell()
        return lease

    def finish_load(self, lease_id: int, loaded_tokens: int) -> bool:
        """Ends a load. The first `loaded_tokens` of its prefix, cached ones included, are there.

        Their full blocks are published, and cached from then on, unless the namespace was
        flushed meanwhile. 0: nothing came. False if the lease is over; so a late or a second
        completion does nothing. Raises InvalidArgumentError for more tokens than the lease has.
        """
        finished = self._leases.finish_load(lease_id, loaded_tokens)
        self._feed.tell()
        return finished

    def begin_store(
        self, namespace: bytes, token_ids: NDArray[np.int32], seconds: float
    ) -> StoreLease | None:
        """Keeps the cached part of a prefix while it is copied out; None: nothing is cached."""
        require_namespace(namespace)
        return self._leases.begin_store(namespace, require_tokens(token_ids), seconds)

    def end_lease(self, lease_id: int) -> bool:
        """Ends a store, or gives a load up; False if it is over already."""
        return self._leases.end(lease_id, HolderKind.LOAD, HolderKind.STORE)

    def expire(self) -> int:
        """Ends the pins and leases whose deadline has passed; answers how many.

        Call it in every step. Admission does so by itself when blocks are short.
        """
        self._time.expire_retention()
        return self._leases.expire()

    # --- the whole -----------------------------------------------------------

    def add_listener(self, listener: IndexListener) -> None:
        """Tells it of every change of the index from now on."""
        self._feed.add(listener)

    def flush(self, namespace: bytes | None) -> FlushResult:
        """Forgets what is cached in a namespace (None: in all).

        Whoever holds blocks keeps them, and publishes nothing from now on: what is computed
        behind them rests on what was forgotten.
        """
        if namespace is not None:
            require_namespace(namespace)
        result = FlushResult(*self._core.flush(namespace))
        self._accounting.flushed(namespace)
        self._feed.tell()
        return result

    def resize(self, num_blocks: int) -> ResizeResult:
        """Makes the pool larger, or smaller: blocks in use move out of its tail.

        Give the memory more blocks before it grows, and fewer after it has shrunk. Cached and
        expected blocks are given up as needed. Read every block table and `blocks` of a lease
        again. Raises PoolInUseError when what is in use does not fit, and InvalidArgumentError
        below the floors of the tenants; then nothing has changed.
        """
        _require_blocks(num_blocks)
        usable_blocks = num_blocks - 1
        self._tenants.require_fit(usable_blocks)
        self._leases.expire()
        evicted_before = CoreCounts(*self._core.counts()).evicted
        self._room.make_fit(usable_blocks)
        moves = self._core.resize(num_blocks)
        self._room.usable_blocks = usable_blocks
        self._feed.tell(moves)
        evicted = CoreCounts(*self._core.counts()).evicted - evicted_before
        return ResizeResult(num_blocks, len(moves), evicted)

    def set_share(self, tenant: str, share: TenantShare) -> None:
        """Gives a tenant that the manager was made with another share, in force at once."""
        self._tenants.change(self._core, tenant, share, self.usable_blocks)

    def stats(self) -> CacheStats:
        """Figures of this moment, O(1)."""
        self._time.take_samples()
        parts = self._accounting, self._leases, self._expectations
        return cache_stats(self._core, self.usable_blocks, *parts)

    def tenant_stats(self, tenant: str) -> TenantStats:
        """Figures of one tenant; those without a share are one together."""
        return self._ledger.stats(tenant)

    def histograms(self) -> BlockHistograms:
        """How long blocks live, idle and wait to be hit again, from one block in 64."""
        return self._time.histograms()

    def fragmentation(self) -> Fragmentation:
        """Memory that holds nothing, or holds something twice. O(tokens of live sequences)."""
        live = [(number, request.namespace) for number, request in self._live.items()]
        duplicates = duplicate_blocks(self._core, live, self.block_tokens)
        block_bytes = None if self._memory is None else self._memory.block_bytes
        return Fragmentation.of(self.stats(), duplicates, self.block_tokens, block_bytes)

    def snapshot(self) -> IndexSnapshot:
        """The whole index as of the last event, O(number of its tokens)."""
        number = 0 if self._events is None else self._events.last_number
        return IndexSnapshot(number, tuple(Stored(number, *run) for run in self._core.runs()))

    def check(self) -> None:
        """Conservation of blocks, O(1)."""
        self._core.check()

    def audit(self) -> None:
        """Full check of pool, index and holders against each other, O(everything)."""
        self._core.audit()

    # --- mechanism -----------------------------------------------------------

    def _live_request(self, sequence_id: int) -> AdmissionRequest:
        try:
            return self._live[sequence_id]
        except KeyError:
            raise UnknownSequenceError(sequence_id) from None

    def _is_full(self, sequence_id: int) -> bool:
        """Whether the next token needs a block, and may cost another tenant one."""
        return self._core.num_tokens(sequence_id) % self.block_tokens == 0

    def _reuse_partial(self, fits: Fits) -> None:
        """Copies the block that agrees in part to the first new one."""
        sequence_id, hit_blocks = fits.plan.request.sequence_id, fits.plan.match[0]
        source, _ = fits.plan.partial
        self._feed.tell([(source, int(self.block_table(sequence_id)[hit_blocks]))])
        self._core.commit(sequence_id, fits.cached_tokens)


def _require_blocks(num_blocks: int) -> None:
    if not 2 <= num_blocks <= _MAX_BLOCKS:
        limit = f"at least 2 (the null block and one more) and at most {_MAX_BLOCKS}"
        raise InvalidArgumentError("num_blocks", num_blocks, limit)
