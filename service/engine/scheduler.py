"""Decides what one step computes: a varlen batch of decode tokens and prefill chunks.

Every running sequence that decodes gets its token in every step; prefill chunks share the
rest of the token budget by priority, then in order of admission; what is left then admits
waiting sequences. While memory allows steps of few tokens only, running sequences take turns,
see `service.engine.pace`.
An admitted sequence holds blocks for all its tokens, so only decoding can run short of
blocks. Then victims give up blocks and come back later, see `kvcache.preemption`. A waiting
sequence takes the place, or the blocks, of running ones of lower priority in the same way. A
sequence is a victim only once per token it produces, so every preemption is paid for with
progress and the engine cannot thrash for ever.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvcache import CacheManager, PreemptionPlan
from service.engine.admissions import Admissions
from service.engine.figures import PreemptionReason
from service.engine.messages import Preempted, Readmitted
from service.engine.pace import Pace, take_turns
from service.engine.policy import Chunk, SchedulerLimits, StepBudget
from service.engine.request import Sequence, SequenceState
from service.engine.running import RunningSequences
from service.engine.sequence_tiers import SequenceTiers
from service.engine.step_plan import NoProgress, StepPlan
from service.engine.victims import VictimChooser
from service.engine.waiting import WaitingRoom

_MAX_EMPTY_STEPS = 3


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
        self._waiting = WaitingRoom(manager, tiers)
        self._running = RunningSequences(manager, tiers, self._waiting)
        self._admissions = Admissions(manager, limits, self._running, self._waiting, victims)
        self._pace = Pace(limits.max_step_tokens, limits.max_step_tokens)
        self._step = 0
        self._empty_steps = 0

    @property
    def has_work(self) -> bool:
        """Whether a sequence runs or waits."""
        return len(self._running) > 0 or len(self._waiting) > 0

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

    @property
    def pace(self) -> Pace:
        """In force since the last `set_pace`."""
        return self._pace

    @property
    def preemption_counts(self) -> tuple[int, ...]:
        """Preemptions since the start, by mode, and for each mode by reason."""
        return self._running.preemption_counts

    def take_moves(self) -> list[Preempted | Readmitted]:
        """Who lost blocks, and who came back, since this was last asked, in that order."""
        return self._running.take_moves()

    def running(self) -> list[Sequence]:
        """The batch, in order of admission."""
        return self._running.all()

    def largest_tokens(self, *, and_waiting: bool = True) -> int:
        """Tokens of the longest sequence that runs, or waits; 0: there is none."""
        running_tokens = max((s.num_tokens for s in self._running), default=0)
        return max(running_tokens, self._waiting.largest_tokens) if and_waiting else running_tokens

    def largest_blocks(self, *, and_waiting: bool) -> int:
        """What the longest one needs to run alone, and one block for its growth; 0: none is."""
        tokens = self.largest_tokens(and_waiting=and_waiting)
        return -(-tokens // self._manager.block_tokens) + 1 if tokens else 0

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether a sequence is there that may take rows of logits for its prompt."""
        return self._waiting.wants_prompt_logprobs or any(
            sequence.missing_prompt_logprobs for sequence in self._running
        )

    def submit(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self._waiting.add(sequence)
        self._admissions.note_change()

    def remove(self, sequence: Sequence) -> None:
        """Takes out a sequence in whatever state; its blocks are free at once."""
        if sequence.state.is_queued:
            self._waiting.give_up(sequence)
        else:
            self._running.end(sequence)
        self._admissions.note_change()

    def computed(self, chunk: Chunk) -> None:
        """Takes note that K and V of a chunk are written, and publishes full blocks."""
        sequence = chunk.sequence
        sequence.computed(chunk.count)
        sequence.computed_step = self._step
        self._manager.commit(sequence.sequence_id, sequence.computed_tokens)
        if sequence.state is SequenceState.PREFILL:
            self._admissions.note_change()
            if sequence.remaining_tokens == 0:
                sequence.state = SequenceState.DECODE

    def set_pace(self, step_tokens: int, prefill_tokens: int, admits: bool) -> None:
        """What memory allows from the next step on, see `Pace`; at most what the settings do."""
        most = self._limits.max_step_tokens
        step_tokens = max(1, min(step_tokens, most))
        self._pace = Pace(step_tokens, max(1, min(prefill_tokens, step_tokens)), admits)

    def set_pool(self, usable_blocks: int, headroom_blocks: int, reach_blocks: int) -> None:
        """Admission counts with a pool of `usable_blocks` from now on.

        That is less than the manager has while the pool is to shrink. What can never run in
        a pool of the new size is answered when it is in force; but what a pool of
        `reach_blocks` has room for waits, since the pool may grow to that again by itself.
        """
        self._admissions.set_pool(usable_blocks, headroom_blocks, reach_blocks)

    def make_room(self, blocks: int, now_seconds: float) -> int:
        """Preempts running sequences for a pool that is to be `blocks` smaller.

        Answers how many. Blocks that several shared may need another call.
        """
        preemption = self._victims.for_shrinking(self._running.all(), blocks)
        if preemption is None:
            return 0
        self._admissions.note_change()
        return len(self._running.preempt(preemption, PreemptionReason.POOL_SHRUNK, now_seconds))

    def preempt_all_but_one(self, now_seconds: float) -> int:
        """Leaves the batch to the first one of the highest rank; answers how many lost it."""
        self._admissions.note_change()
        return self._running.preempt_all_but_one(PreemptionReason.OOM, now_seconds)

    def plan(self, now_seconds: float) -> StepPlan:
        """Chooses the work of the next step; all of it holds its blocks then.

        Raises NoProgress when work stays undone without a reason.
        """
        self._step += 1
        plan = StepPlan()
        has_expired = self._manager.expire() > 0
        if self._tiers.poll() or has_expired:
            self._admissions.note_change()
        budget = StepBudget(
            tokens=self._pace.step_tokens,
            chunk_tokens=self._limits.prefill_chunk_tokens,
            logprob_rows=self._limits.prompt_logprob_rows,
        )
        turns = take_turns(self._running.all(), self._pace.step_tokens)
        if turns is None:
            self._schedule_all(budget, plan, now_seconds)
        else:
            self._schedule_turns(turns, budget, plan, now_seconds)
        self._admissions.turn_misfits_away(plan)
        if not plan.preempted and (self._pace.admits or not self._running):
            self._admissions.admit(budget, plan, now_seconds, one=not self._pace.admits)
        self._detect_standstill(plan)
        return plan

    def _schedule_all(self, budget: StepBudget, plan: StepPlan, now_seconds: float) -> None:
        """A token for each that decodes, and the rest of the step to those that prefill."""
        self._grow(self._running, plan, now_seconds)
        for sequence in self._running.in_state(SequenceState.DECODE):
            plan.schedule(sequence, budget)
        budget.tokens = min(budget.tokens, self._pace.prefill_tokens)
        by_rank = sorted(self._running.in_state(SequenceState.PREFILL), key=lambda s: -s.priority)
        for sequence in by_rank:
            plan.schedule(sequence, budget)

    def _schedule_turns(
        self, turns: list[Sequence], budget: StepBudget, plan: StepPlan, now_seconds: float
    ) -> None:
        """A token for each of these; the others keep their blocks and wait for their turn."""
        self._grow(turns, plan, now_seconds)
        budget.chunk_tokens = 1
        for sequence in turns:
            if sequence.state in (SequenceState.DECODE, SequenceState.PREFILL):
                plan.schedule(sequence, budget)

    def _grow(self, sequences: Iterable[Sequence], plan: StepPlan, now_seconds: float) -> None:
        """Gives the newest token of those that decode a slot, at others' cost if need be.

        It has one already if the step that was to compute it failed.
        """
        for sequence in sequences:
            # A victim of an earlier one in this loop no longer decodes.
            while (
                sequence.state is SequenceState.DECODE
                and self._manager.num_tokens(sequence.sequence_id) < sequence.num_tokens
                and self._manager.append(sequence.sequence_id, sequence.last_token_id)
            ):
                preemption = self._victims.for_growth(self._running.all(), sequence)
                if preemption is not None:
                    self._preempt(preemption, plan, now_seconds)
                elif not self._tiers.give_up_loads():
                    self._outgrown(sequence, plan, now_seconds)
                    break
        for sequence in plan.evicted:
            self.remove(sequence)

    def _outgrown(self, sequence: Sequence, plan: StepPlan, now_seconds: float) -> None:
        """Nobody can give it a block: it waits for the pool to grow again, or ends here."""
        needed_blocks = -(-sequence.num_tokens // self._manager.block_tokens)
        if self._admissions.may_fit_later(needed_blocks, needed_blocks - 1):
            self._running.preempt_one(sequence, PreemptionReason.KV_FULL, now_seconds)
            plan.preempted.append(sequence)
            self._admissions.note_change()
        else:
            plan.evicted.append(sequence)

    def _preempt(self, preemption: PreemptionPlan, plan: StepPlan, now_seconds: float) -> None:
        victims = self._running.preempt(preemption, PreemptionReason.KV_FULL, now_seconds)
        plan.preempted.extend(victims)
        self._admissions.note_change()

    def _detect_standstill(self, plan: StepPlan) -> None:
        """Raises NoProgress after some empty steps, unless something is to end by itself."""
        if not plan.is_empty or not self.has_work:
            self._empty_steps = 0
        elif self._pool_changes or self._tiers.is_loading or self._is_pinned:
            self._empty_steps = 0
            self._admissions.note_change()  # an unpinned block tells nobody
        else:
            self._empty_steps += 1
        if self._empty_steps >= _MAX_EMPTY_STEPS:
            raise NoProgress(self._empty_steps, self._running.all(), list(self._waiting))

    @property
    def _pool_changes(self) -> bool:
        """Whether it is on its way to another size, or may be."""
        return self._admissions.excess_blocks > 0 or self._admissions.pool_may_grow

    @property
    def _is_pinned(self) -> bool:
        """Whether blocks are in use that no sequence holds; pins and leases have deadlines."""
        stats = self._manager.stats()
        return stats.pinned + stats.loading + stats.storing > 0
