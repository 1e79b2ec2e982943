"""Decides what one step computes: a varlen batch of decode tokens and prefill chunks.

Every running sequence that decodes gets its token in every step; prefill chunks share the
rest of the token budget by priority, then in order of admission; what is left then admits
waiting sequences.
An admitted sequence holds blocks for all its tokens, so only decoding can run short of
blocks. Then victims give up blocks and come back later, see `kvcache.preemption`. A waiting
sequence takes the place, or the blocks, of running ones of lower priority in the same way. A
sequence is a victim only once per token it produces, so every preemption is paid for with
progress and the engine cannot thrash for ever.
"""

from __future__ import annotations

from dataclasses import replace

from kvcache import (
    Admission,
    AdmissionRequest,
    CacheManager,
    Fits,
    NeverFits,
    NotNow,
    PreemptionMode,
    PreemptionPlan,
)
from service.engine.policy import Chunk, SchedulerLimits, StepBudget
from service.engine.request import Sequence, SequenceState
from service.engine.sequence_tiers import SequenceTiers
from service.engine.step_plan import NoProgress, StepPlan
from service.engine.victims import VictimChooser
from service.engine.waiting import WaitingRoom

_MAX_EMPTY_STEPS = 3
_MAX_PASSED_OVER = 64  # bounds the time an admission pass takes in a long queue


class Scheduler:
    """The waiting and the running sequences, and the policy that moves them."""

    def __init__(
        self,
        manager: CacheManager,
        limits: SchedulerLimits,
        victims: VictimChooser,
        tiers: SequenceTiers,
    ) -> None:
        self._manager = manager
        self._limits = limits
        self._victims = victims
        self._tiers = tiers
        self._running: list[Sequence] = []  # in order of admission
        self._waiting = WaitingRoom(manager, tiers)
        self._empty_steps = 0
        # While nothing is released or computed, sequences that did not fit still do not
        # fit: steps of pure decoding do not ask again.
        self._admission_may_change = True
        self._pool_blocks = manager.usable_blocks  # that admission counts with
        self._pool_shrinks = False

    @property
    def has_work(self) -> bool:
        """Whether a sequence runs or waits."""
        return bool(self._running) or len(self._waiting) > 0

    @property
    def running_count(self) -> int:
        """Sequences in the batch."""
        return len(self._running)

    @property
    def waiting_count(self) -> int:
        """Sequences that wait for admission, preempted ones included."""
        return len(self._waiting)

    @property
    def preempted_count(self) -> int:
        """Sequences that lost their blocks and wait to come back."""
        return self._waiting.preempted_count

    def submit(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self._waiting.add(sequence)
        self._admission_may_change = True

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence in whatever state; its blocks are free at once."""
        if sequence.state.is_queued:
            self._waiting.give_up(sequence)
        else:
            self._running.remove(sequence)
            self._manager.release(sequence.sequence_id)
        self._admission_may_change = True

    def computed(self, chunk: Chunk) -> None:
        """Takes note that K and V of a chunk are written, and publishes full blocks."""
        sequence = chunk.sequence
        sequence.computed(chunk.count)
        self._manager.commit(sequence.sequence_id, sequence.computed_tokens)
        if sequence.state is SequenceState.PREFILL:
            self._admission_may_change = True
            if sequence.remaining_tokens == 0:
                sequence.state = SequenceState.DECODE

    def set_pool(self, usable_blocks: int, headroom_blocks: int) -> None:
        """Admission counts with a pool of `usable_blocks` from now on.

        That is less than the manager has while the pool is to shrink. What can never run in
        a pool of the new size is answered when it is in force.
        """
        self._limits = replace(self._limits, headroom_blocks=headroom_blocks)
        self._pool_shrinks |= usable_blocks < self._pool_blocks
        self._pool_blocks = usable_blocks
        self._admission_may_change = True

    def make_room(self, blocks: int, now_seconds: float) -> int:
        """Preempts running sequences for a pool that is to be `blocks` smaller.

        Answers how many. Blocks that several shared may need another call.
        """
        preemption = self._victims.for_shrinking(self._running, blocks)
        if preemption is None:
            return 0
        plan = StepPlan()
        self._preempt(preemption, plan, now_seconds)
        return len(plan.preempted)

    def plan(self, now_seconds: float) -> StepPlan:
        """Chooses the work of the next step; all of it holds its blocks then.

        Raises NoProgress when work stays undone without a reason.
        """
        plan = StepPlan()
        has_expired = self._manager.expire() > 0
        if self._tiers.poll() or has_expired:
            self._admission_may_change = True
        self._grow_decodes(plan, now_seconds)
        budget = StepBudget(
            tokens=self._limits.max_step_tokens,
            chunk_tokens=self._limits.prefill_chunk_tokens,
            logprob_rows=self._limits.prompt_logprob_rows,
        )
        for sequence in self._running_in(SequenceState.DECODE):
            self._schedule(sequence, budget, plan)
        by_rank = sorted(self._running_in(SequenceState.PREFILL), key=lambda s: -s.priority)
        for sequence in by_rank:
            self._schedule(sequence, budget, plan)
        if self._pool_shrinks and not self._excess_blocks:
            self._turn_misfits_away(plan)
        if self._admission_may_change and not plan.preempted:
            self._admit(budget, plan, now_seconds)
            self._waiting.keep_hits()
        self._detect_standstill(plan)
        return plan

    def _running_in(self, state: SequenceState) -> list[Sequence]:
        return [sequence for sequence in self._running if sequence.state is state]

    def _schedule(self, sequence: Sequence, budget: StepBudget, plan: StepPlan) -> None:
        start = sequence.computed_tokens
        count = budget.take(start, sequence.remaining_tokens, sequence.missing_prompt_logprobs)
        if count:
            plan.chunks.append(Chunk(sequence, start, count))

    # --- growth and preemption -------------------------------------------------

    def _grow_decodes(self, plan: StepPlan, now_seconds: float) -> None:
        """Gives the newest token of every decoding sequence a slot, at others' cost if need be."""
        for sequence in tuple(self._running):
            # A victim of an earlier one in this loop no longer decodes.
            while sequence.state is SequenceState.DECODE and self._manager.append(
                sequence.sequence_id, sequence.last_token_id
            ):
                preemption = self._victims.for_growth(self._running, sequence)
                if preemption is not None:
                    self._preempt(preemption, plan, now_seconds)
                elif not self._tiers.give_up_loads():
                    plan.evicted.append(sequence)
                    break
        for sequence in plan.evicted:
            self.remove(sequence)

    def _preempt(self, preemption: PreemptionPlan, plan: StepPlan, now_seconds: float) -> None:
        running = {sequence.sequence_id: sequence for sequence in self._running}
        for taken in preemption.victims:
            victim = running[taken.sequence_id]
            is_swapped = taken.mode is PreemptionMode.SWAP and self._tiers.swap_out(victim)
            self._manager.preempt(
                victim.sequence_id, keep_blocks=taken.keep_blocks, swapped=is_swapped
            )
            self._running.remove(victim)
            victim.preempted(now_seconds)
            self._waiting.add(victim)
            plan.preempted.append(victim)
        self._admission_may_change = True

    # --- admission ---------------------------------------------------------------

    def _admit(self, budget: StepBudget, plan: StepPlan, now_seconds: float) -> None:
        """Admits from the queue while slots, tokens and blocks last.

        A sequence that does not fit now lets smaller ones behind it pass, but only
        `max_skips` of them; then the rest waits for it. Nothing passes a preempted one: it
        came to wait because there were too many already.
        """
        too_big: list[Sequence] = []
        deferred = 0
        for sequence in self._waiting:
            if not budget.tokens or (self._is_full and not self._outranks_some(sequence.priority)):
                return
            request = self._waiting.request(sequence, self._headroom_blocks)
            answer = self._manager.admit(request)
            if self._is_deferred(sequence, request, answer):
                deferred += 1
                continue
            while (self._is_full or isinstance(answer, NotNow)) and self._make_way(
                sequence, answer, budget, plan, now_seconds
            ):
                answer = self._manager.admit(request)
            if isinstance(answer, NeverFits):
                self._turn_away(sequence, answer, plan)
            elif isinstance(answer, NotNow) or self._is_full:
                too_big.append(sequence)
            else:
                self._start(sequence, answer, budget, plan, now_seconds)
                for passed in too_big:
                    passed.skips += 1
            if len(too_big) + deferred >= _MAX_PASSED_OVER or self._is_due(too_big):
                break
        self._admission_may_change = False

    @property
    def _excess_blocks(self) -> int:
        """Blocks that are there and will not be when the pool has shrunk."""
        return max(0, self._manager.usable_blocks - self._pool_blocks)

    @property
    def _headroom_blocks(self) -> int:
        """What an admission leaves to the growth of running sequences."""
        return self._limits.headroom_blocks + self._excess_blocks

    def _outgrows_new_pool(self, sequence: Sequence) -> bool:
        """Whether it is to be refused when a smaller pool is in force, if it ever is."""
        return (
            self._excess_blocks > 0
            and sequence.num_tokens > self._pool_blocks * self._manager.block_tokens
        )

    @property
    def _is_full(self) -> bool:
        return len(self._running) >= self._limits.running_sequences

    def _outranks_some(self, priority: int) -> bool:
        """Whether a running sequence ranks below `priority`."""
        return any(sequence.priority < priority for sequence in self._running)

    def _is_deferred(
        self, sequence: Sequence, request: AdmissionRequest, answer: Admission
    ) -> bool:
        """Whether it is passed over in this step though it need not be too big."""
        if self._outgrows_new_pool(sequence):
            return True
        if isinstance(answer, NeverFits):
            return False
        may_start = isinstance(answer, Fits) or self._outranks_some(sequence.priority)
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
        if isinstance(answer, NeverFits) or not self._outranks_some(sequence.priority):
            return False
        preemption = self._victims.for_admission(self._running, sequence, answer)
        if preemption is None:
            return False
        self._preempt(preemption, plan, now_seconds)
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

    def _turn_misfits_away(self, plan: StepPlan) -> None:
        """Answers all that wait and cannot run in a pool of the present size."""
        for sequence in self._waiting:
            request = self._waiting.request(sequence, self._headroom_blocks)
            answer = self._manager.admit(request)
            if isinstance(answer, NeverFits):
                self._turn_away(sequence, answer, plan)
        self._pool_shrinks = False

    def _turn_away(self, sequence: Sequence, answer: NeverFits, plan: StepPlan) -> None:
        """A sequence larger than the pool: refused, or ended if it has already given output."""
        self.remove(sequence)
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
        sequence.admitted(cached_tokens, now_seconds)
        self._running.append(sequence)
        self._schedule(sequence, budget, plan)

    def _detect_standstill(self, plan: StepPlan) -> None:
        """Raises NoProgress after some empty steps, unless something is to end by itself."""
        if not plan.is_empty or not self.has_work:
            self._empty_steps = 0
        elif self._excess_blocks > 0 or self._tiers.is_loading or self._is_pinned:
            self._empty_steps = 0
            self._admission_may_change = True  # an unpinned block tells nobody
        else:
            self._empty_steps += 1
        if self._empty_steps >= _MAX_EMPTY_STEPS:
            raise NoProgress(self._empty_steps, list(self._running), list(self._waiting))

    @property
    def _is_pinned(self) -> bool:
        """Whether blocks are in use that no sequence holds; pins and leases have deadlines."""
        stats = self._manager.stats()
        return stats.pinned + stats.loading + stats.storing > 0
