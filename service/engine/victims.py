"""Which running sequences give way to another, told to the planner in its own terms."""

from __future__ import annotations

from collections.abc import Iterable

from kvcache import (
    CacheManager,
    PreemptionPlan,
    PreemptionRates,
    RateMeter,
    VictimCandidate,
    plan_preemption,
)
from service.engine.request import Sequence

_PREFILL_SHARE = 0.5  # of a step's tokens from which on its time tells the prefill rate


class VictimChooser:
    """Plans preemptions of running sequences with the speeds measured so far."""

    def __init__(self, manager: CacheManager, block_bytes: int = 0) -> None:
        self._manager = manager
        self._block_bytes = block_bytes
        self._prefill = RateMeter()
        self._steps = RateMeter()

    def note_step(self, prefill_tokens: int, tokens: int, seconds: float) -> None:
        """Takes note of a step of `tokens`, of them `prefill_tokens` not chosen by the engine."""
        self._steps.add(1.0, seconds)
        if prefill_tokens >= _PREFILL_SHARE * tokens:
            self._prefill.add(tokens, seconds)

    def for_growth(self, running: list[Sequence], needy: Sequence) -> PreemptionPlan | None:
        """Victims for a running sequence that lacks a block; None if it is alone."""
        return plan_preemption(
            self._candidates(running), 1, self._rates(), needy_id=needy.sequence_id
        )

    def for_admission(
        self, running: list[Sequence], waiting: Sequence, short_blocks: int
    ) -> PreemptionPlan | None:
        """Victims for a waiting sequence, all of lower priority; None if they are not enough.

        `short_blocks` may be 0: then it lacks a place in the batch only. Where all that runs
        ranks lower it is enough whatever blocks they share, so one may go at a time.
        """
        lower = [sequence for sequence in running if sequence.priority < waiting.priority]
        progressed = [sequence for sequence in lower if sequence.progressed]
        return plan_preemption(
            self._candidates(progressed),
            short_blocks,
            self._rates(),
            all_or_nothing=len(progressed) < len(running),
        )

    def for_shrinking(self, running: list[Sequence], blocks: int) -> PreemptionPlan | None:
        """Victims for a pool that is to be `blocks` smaller; None if nothing runs."""
        return plan_preemption(self._candidates(running), blocks, self._rates())

    def _rates(self) -> PreemptionRates:
        steps_per_second = self._steps.per_second
        return PreemptionRates(
            block_tokens=self._manager.block_tokens,
            block_bytes=self._block_bytes,
            prefill_tokens_per_second=self._prefill.per_second,
            stall_seconds=1.0 / steps_per_second if steps_per_second else 0.0,
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
