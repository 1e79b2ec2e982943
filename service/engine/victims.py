"""Which running sequences give way to another, told to the planner in its own terms."""

from __future__ import annotations

from collections.abc import Iterable

from kvcache import (
    CacheManager,
    Fits,
    NotNow,
    PreemptionPlan,
    PreemptionRates,
    RateMeter,
    VictimCandidate,
    plan_preemption,
)
from kvcache.admission import Shortage
from service.engine.request import Sequence
from service.engine.sequence_tiers import SequenceTiers
from service.engine.tenancy import Tenancy

_PREFILL_SHARE = 0.5  # of a step's tokens from which on its time tells the prefill rate


class VictimChooser:
    """Plans preemptions of running sequences with the speeds measured so far."""

    def __init__(
        self,
        manager: CacheManager,
        block_bytes: int,
        tiers: SequenceTiers,
        tenancy: Tenancy,
    ) -> None:
        self._manager = manager
        self._block_bytes = block_bytes
        self._tiers = tiers
        self._tenancy = tenancy
        self._prefill = RateMeter()
        self._steps = RateMeter()

    def note_step(self, prefill_tokens: int, tokens: int, seconds: float) -> None:
        """Takes note of a step of `tokens`, of them `prefill_tokens` not chosen by the engine."""
        self._steps.add(1.0, seconds)
        if prefill_tokens >= _PREFILL_SHARE * tokens:
            self._prefill.add(tokens, seconds)

    def for_growth(self, running: list[Sequence], needy: Sequence) -> PreemptionPlan | None:
        """Victims for a running sequence that lacks a block; None if nobody but it can give one."""
        lacks_quota = self._tenancy.is_at_quota(needy.spec.tenant)
        givers = self._helpful(running, needy, lacks_quota=lacks_quota)
        return self._plan(givers, 1, needy_id=needy.sequence_id)

    def for_admission(
        self, running: list[Sequence], waiting: Sequence, answer: Fits | NotNow
    ) -> PreemptionPlan | None:
        """Victims for a waiting sequence, all of lower priority; None if they are not enough.

        `answer` is what admission said. If it fits it lacks a place in the batch only. Where
        all that runs ranks lower it is enough whatever blocks they share, so one may go at a
        time.
        """
        givers = [s for s in running if s.priority < waiting.priority and s.progressed]
        short_blocks = 0
        if isinstance(answer, NotNow):
            short_blocks = answer.short_blocks
            lacks_quota = answer.reason is Shortage.QUOTA
            givers = self._helpful(givers, waiting, lacks_quota=lacks_quota)
        return self._plan(givers, short_blocks, all_or_nothing=len(givers) < len(running))

    def for_shrinking(self, running: list[Sequence], blocks: int) -> PreemptionPlan | None:
        """Victims for a pool that is to be `blocks` smaller; None if nothing runs."""
        return self._plan(running, blocks)

    def _plan(
        self,
        sequences: list[Sequence],
        short_blocks: int,
        *,
        needy_id: int | None = None,
        all_or_nothing: bool = False,
    ) -> PreemptionPlan | None:
        return plan_preemption(
            self._candidates(sequences),
            short_blocks,
            self._rates(),
            host_free_blocks=self._tiers.host_room_blocks,
            needy_id=needy_id,
            all_or_nothing=all_or_nothing,
        )

    def _helpful(
        self, sequences: list[Sequence], needy: Sequence, *, lacks_quota: bool
    ) -> list[Sequence]:
        """Those whose blocks the tenant of `needy` may have."""
        tenants = self._tenancy.helpful(
            {s.spec.tenant for s in sequences}, needy.spec.tenant, lacks_quota=lacks_quota
        )
        return [sequence for sequence in sequences if sequence.spec.tenant in tenants]

    def _rates(self) -> PreemptionRates:
        prefill = self._prefill.per_second
        steps = self._steps.per_second
        return PreemptionRates(
            block_tokens=self._manager.block_tokens,
            block_bytes=self._block_bytes,
            prefill_tokens_per_second=prefill,
            copy_bytes_per_second=self._tiers.copy_bytes_per_second,
            # Seconds cannot be added to tokens, in which costs are while no speed is known.
            stall_seconds=1.0 / steps if steps is not None and prefill is not None else 0.0,
        )

    def _candidates(self, sequences: Iterable[Sequence]) -> list[VictimCandidate]:
        """`sequences` are in order of admission."""
        manager = self._manager
        return [
            VictimCandidate(
                sequence_id=sequence.sequence_id,
                priority=sequence.priority,
                admitted_serial=serial,
                progressed=sequence.progressed,
                blocks=-(-manager.num_tokens(sequence.sequence_id) // manager.block_tokens),
                exclusive_blocks=manager.exclusive_blocks(sequence.sequence_id),
                computed_tokens=sequence.computed_tokens,
                reusable=sequence.spec.publish_blocks and sequence.may_hit_cache,
            )
            for serial, sequence in enumerate(sequences)
        ]
