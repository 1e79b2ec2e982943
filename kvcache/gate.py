"""Lets sequences in and lets them grow: finds what they hit, judges whether they fit."""

from __future__ import annotations

from collections.abc import Callable

from kvcache.accounting import Accounting
from kvcache.admission import (
    Admission,
    AdmissionPlan,
    AdmissionRequest,
    Fits,
    Need,
    NeverFits,
    NotNow,
    most_hits,
)
from kvcache.core import NO_MATCH, CacheCore, HolderKind, PrefixMatch
from kvcache.errors import OutOfBlocksError, StalePlanError
from kvcache.room import Room
from kvcache.tenant_ledger import TenantLedger

_REPORTED_HOLDERS = 8
_NO_PARTIAL = (0, 0)


class Gate:
    """The way of sequences into a core.

    `partial_reuse_tokens` is how many tokens of a block must agree to make a copy worth it; None:
    no copies. `expire` ends what is over by its deadline, and answers how much that was.
    """

    def __init__(
        self,
        core: CacheCore,
        block_tokens: int,
        room: Room,
        accounting: Accounting,
        ledger: TenantLedger,
        *,
        partial_reuse_tokens: int | None,
        expire: Callable[[], int],
    ) -> None:
        self._core = core
        self._block_tokens = block_tokens
        self._room = room
        self._accounting = accounting
        self._ledger = ledger
        self._partial_reuse_tokens = partial_reuse_tokens
        self._expire = expire

    def admit(self, request: AdmissionRequest) -> Admission:
        """Whether the sequence fits, now or ever; see CacheManager."""
        answer = self._judge(request)
        if isinstance(answer, NotNow) and self._expire():
            return self._judge(request)
        return answer

    def begin(self, fits: Fits) -> Fits:
        """Lets the sequence hold its blocks, and counts its hits; answers the plan that was used.

        Raises StalePlanError.
        """
        if fits.plan.version != self._core.version:
            fits = self._renewed(fits.plan.request)
        self._accounting.looked_up(fits)
        if not self._room.tenants.are_many:
            return self._start(fits)
        self._ledger.looked_up(fits)
        with self._ledger.evictions_for(fits.plan.group):
            return self._start(fits)

    def append(self, sequence_id: int, token_id: int, group: int) -> int:
        """Gives a token a slot, ending what is over and letting go of what is expected if need be.

        Answers 0; or 1, the blocks missing, and then nothing was let go.
        """
        with self._ledger.evictions_for(group):
            short = self._core.append(sequence_id, token_id)
            if short and self._expire():
                short = self._core.append(sequence_id, token_id)
            if short and self._core.available_blocks(group) > 0:
                while short and self._room.drop_expectation(group):
                    short = self._core.append(sequence_id, token_id)
        return short

    def _judge(self, request: AdmissionRequest) -> Admission:
        core, room, token_ids = self._core, self._room, request.token_ids
        needed = -(-token_ids.size // self._block_tokens)
        group = room.group_of(request.tenant, request.namespace)
        limit = room.limit_blocks(group)
        if needed > limit:
            return NeverFits(needed, room.usable_blocks, limit * self._block_tokens)
        match, partial = NO_MATCH, _NO_PARTIAL
        if request.use_cache:
            most = most_hits(token_ids, self._block_tokens)
            match = core.match(request.namespace, token_ids, most)
            partial = self._partial_match(request, match)
        hit_blocks, evictable_hits, _ = match
        headroom = request.headroom_blocks if core.live_sequences else 0
        need = Need(needed - hit_blocks, evictable_hits, headroom)
        available = room.available(group)
        short = need.short_blocks(available)
        if short > 0:
            holders = core.largest_holders(_REPORTED_HOLDERS)
            return NotNow(short, holders, need.shortage(available))
        cached_tokens = hit_blocks * self._block_tokens + partial[1]
        plan = AdmissionPlan(request, match, partial, group, core.version)
        return Fits(cached_tokens, needed - hit_blocks, plan)

    def _renewed(self, request: AdmissionRequest) -> Fits:
        answer = self.admit(request)
        if not isinstance(answer, Fits):
            short = answer.short_blocks if isinstance(answer, NotNow) else 0
            raise StalePlanError(request.sequence_id, short)
        return answer

    def _start(self, fits: Fits) -> Fits:
        """Begins in the core, letting go of what is expected as needed."""
        while True:
            plan = fits.plan
            request = plan.request
            try:
                self._core.begin(
                    request.sequence_id,
                    request.namespace,
                    request.token_ids,
                    request.publish,
                    plan.match,
                    not request.resumed,
                    HolderKind.SEQUENCE,
                    plan.group,
                    request.retention,
                )
            except OutOfBlocksError:
                if not self._room.drop_expectation(plan.group):
                    raise
                fits = self._renewed(request)  # a match is void after every change
            else:
                return fits

    def _partial_match(self, request: AdmissionRequest, match: PrefixMatch) -> tuple[int, int]:
        if self._partial_reuse_tokens is None:
            return _NO_PARTIAL
        partial = self._core.partial_match(request.namespace, request.token_ids, match)
        return partial if partial[1] >= self._partial_reuse_tokens else _NO_PARTIAL
