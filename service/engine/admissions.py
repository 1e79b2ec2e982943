"""Who of the waiting sequences enters the batch, and who never will."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeGuard

from kvcache import Admission, AdmissionRequest, CacheManager, Fits, NeverFits, NotNow
from service.engine.figures import PreemptionReason
from service.engine.policy import SchedulerLimits, StepBudget
from service.engine.request import Sequence, SequenceState
from service.engine.running import RunningSequences
from service.engine.step_plan import StepPlan
from service.engine.victims import VictimChooser
from service.engine.waiting import WaitingRoom

_MAX_PASSED_OVER = 64  # bounds the time an admission pass takes in a long queue


class Admissions:
    """Goes through the queue while slots, tokens and blocks last."""

    def __init__(
        self,
        manager: CacheManager,
        limits: SchedulerLimits,
        running: RunningSequences,
        waiting: WaitingRoom,
        victims: VictimChooser,
    ) -> None:
        self._manager = manager
        self._limits = limits
        self._running = running
        self._waiting = waiting
        self._victims = victims
        # While nothing is released or computed, sequences that did not fit still do not
        # fit: steps of pure decoding do not ask again.
        self._may_change = True
        self._pool_blocks = manager.usable_blocks  # that are counted with
        self._reach_blocks = manager.usable_blocks  # that the pool may have again
        self._pool_shrinks = False

    def note_change(self) -> None:
        """Something was released, computed, queued or preempted: ask again."""
        self._may_change = True

    def set_pool(self, usable_blocks: int, headroom_blocks: int, reach_blocks: int) -> None:
        """Counts with a pool of `usable_blocks` from now on, see `Scheduler.set_pool`."""
        self._limits = replace(self._limits, headroom_blocks=headroom_blocks)
        self._pool_shrinks |= usable_blocks < self._pool_blocks or reach_blocks < self._reach_blocks
        self._pool_blocks = usable_blocks
        self._reach_blocks = reach_blocks
        self._may_change = True

    @property
    def excess_blocks(self) -> int:
        """Blocks that are there and will not be when the pool has shrunk."""
        return max(0, self._manager.usable_blocks - self._pool_blocks)

    @property
    def pool_may_grow(self) -> bool:
        """Whether the pool is smaller than it may be again without an order."""
        return self._reach_blocks > self._manager.usable_blocks

    def may_fit_later(self, needed_blocks: int, limit_blocks: int) -> bool:
        """Whether what may have `limit_blocks` now may have `needed_blocks` of a pool as large
        as it may be again. Limits are shares of the pool.
        """
        if not self.pool_may_grow:
            return False
        reached_blocks = -(-limit_blocks * self._reach_blocks // self._manager.usable_blocks)
        return needed_blocks <= reached_blocks

    def admit(self, budget: StepBudget, plan: StepPlan, now_seconds: float, *, one: bool) -> None:
        """Admits from the queue into a plan in which nobody was preempted; `one`: at most one.

        A sequence that does not fit now lets smaller ones behind it pass, but only
        `max_skips` of them; then the rest waits for it. Nothing passes a preempted one: it
        came to wait because there were too many already.
        """
        if self._may_change:
            self._go_through(budget, plan, now_seconds, one=one)
            self._waiting.keep_hits()

    def _go_through(
        self, budget: StepBudget, plan: StepPlan, now_seconds: float, *, one: bool
    ) -> None:
        too_big: list[Sequence] = []
        deferred = 0
        for sequence in self._waiting:
            if not budget.tokens:
                return
            if self._is_full and not self._running.outranked_by(sequence.priority):
                break
            request = self._waiting.request(sequence, self._headroom_blocks)
            answer = self._manager.admit(request)
            if self._is_deferred(sequence, request, answer):
                deferred += 1
                continue
            while (self._is_full or isinstance(answer, NotNow)) and self._make_way(
                sequence, answer, budget, plan, now_seconds
            ):
                answer = self._manager.admit(request)
            if self._never_fits(answer):
                self._turn_away(sequence, answer, plan)
            elif isinstance(answer, NotNow | NeverFits) or self._is_full:
                too_big.append(sequence)
            else:
                self._start(sequence, answer, budget, plan, now_seconds)
                for passed in too_big:
                    passed.skips += 1
                if one:
                    return
            if len(too_big) + deferred >= _MAX_PASSED_OVER or self._is_due(too_big):
                break
        self._may_change = False

    def turn_misfits_away(self, plan: StepPlan) -> None:
        """Answers all that wait and cannot run in a pool that has become smaller."""
        if not self._pool_shrinks or self.excess_blocks:
            return
        for sequence in self._waiting:
            request = self._waiting.request(sequence, self._headroom_blocks)
            answer = self._manager.admit(request)
            if self._never_fits(answer):
                self._turn_away(sequence, answer, plan)
        self._pool_shrinks = False

    @property
    def _headroom_blocks(self) -> int:
        """What an admission leaves to the growth of running sequences."""
        return self._limits.headroom_blocks + self.excess_blocks

    def _never_fits(self, answer: Admission) -> TypeGuard[NeverFits]:
        """Whether not even the largest pool that may come again would do."""
        if not isinstance(answer, NeverFits):
            return False
        limit_blocks = answer.limit_tokens // self._manager.block_tokens
        return not self.may_fit_later(answer.needed_blocks, limit_blocks)

    def _outgrows_new_pool(self, sequence: Sequence) -> bool:
        """Whether it is to be refused when a smaller pool is in force, if it ever is."""
        return (
            self.excess_blocks > 0
            and sequence.num_tokens > self._pool_blocks * self._manager.block_tokens
        )

    @property
    def _is_full(self) -> bool:
        return len(self._running) >= self._limits.running_sequences

    def _is_deferred(
        self, sequence: Sequence, request: AdmissionRequest, answer: Admission
    ) -> bool:
        """Whether it is passed over in this step though it need not be too big."""
        if self._outgrows_new_pool(sequence):
            return True
        if isinstance(answer, NeverFits):
            return False
        may_start = isinstance(answer, Fits) or self._running.outranked_by(sequence.priority)
        return self._waiting.awaits_hits(sequence, request, may_start)

    def _make_way(
        self,
        sequence: Sequence,
        answer: Admission,
        budget: StepBudget,
        plan: StepPlan,
        now_seconds: float,
    ) -> bool:
        """Preempts running sequences of lower priority, so that a waiting one can start now."""
        if isinstance(answer, NeverFits) or not self._running.outranked_by(sequence.priority):
            return False
        preemption = self._victims.for_admission(self._running.all(), sequence, answer)
        if preemption is None:
            return False
        victims = self._running.preempt(preemption, PreemptionReason.PRIORITY, now_seconds)
        plan.preempted.extend(victims)
        self._may_change = True
        # They were to be computed in this step.
        for chunk in [c for c in plan.chunks if c.sequence.state is SequenceState.PREEMPTED]:
            plan.chunks.remove(chunk)
            budget.give_back(chunk)
        return True

    def _is_due(self, too_big: list[Sequence]) -> bool:
        """Whether one of those that do not fit has let enough others pass."""
        return any(
            sequence.state is SequenceState.PREEMPTED or sequence.skips >= self._limits.max_skips
            for sequence in too_big
        )

    def _turn_away(self, sequence: Sequence, answer: NeverFits, plan: StepPlan) -> None:
        """A sequence larger than the pool: refused, or ended if it has already given output."""
        self._waiting.give_up(sequence)
        self._may_change = True
        if sequence.output_tokens:
            plan.evicted.append(sequence)
        else:
            plan.refused.append((sequence, answer))

    def _start(
        self,
        sequence: Sequence,
        fits: Fits,
        budget: StepBudget,
        plan: StepPlan,
        now_seconds: float,
    ) -> None:
        """Admits a sequence, and computes what is left for it in the step."""
        if sequence.state is SequenceState.WAITING:
            plan.started.append(sequence)
        cached_tokens = self._manager.begin(fits)
        self._waiting.remove(sequence)
        self._running.admit(sequence, cached_tokens, now_seconds)
        plan.schedule(sequence, budget)
