"""The sequences in the batch, and how they lose their blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kvcache import CacheManager, PreemptionPlan
from kvcache import PreemptionMode as PlannedMode
from service.engine.figures import PreemptionMode, PreemptionReason
from service.engine.messages import Preempted, Readmitted
from service.engine.request import Sequence, SequenceState
from service.engine.sequence_tiers import SequenceTiers
from service.engine.waiting import WaitingRoom


class RunningSequences:
    """All that hold blocks, in order of admission; victims of a preemption go back to wait."""

    def __init__(self, manager: CacheManager, tiers: SequenceTiers, waiting: WaitingRoom) -> None:
        self._manager = manager
        self._tiers = tiers
        self._waiting = waiting
        self._sequences: list[Sequence] = []
        self._moves: list[Preempted | Readmitted] = []
        self._counts = dict.fromkeys(itertools.product(PreemptionMode, PreemptionReason), 0)

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """In order of admission, over a snapshot: preemptions may happen meanwhile."""
        return iter(tuple(self._sequences))

    def all(self) -> list[Sequence]:
        """A copy, in order of admission."""
        return list(self._sequences)

    def in_state(self, state: SequenceState) -> list[Sequence]:
        """Those that prefill, or those that decode."""
        return [sequence for sequence in self._sequences if sequence.state is state]

    def outranked_by(self, priority: int) -> bool:
        """Whether one ranks below `priority`."""
        return any(sequence.priority < priority for sequence in self._sequences)

    @property
    def preemption_counts(self) -> tuple[int, ...]:
        """Preemptions since the start, by mode, and for each mode by reason."""
        return tuple(self._counts.values())

    def take_moves(self) -> list[Preempted | Readmitted]:
        """Who lost blocks, and who came back, since this was last asked, in that order."""
        moves, self._moves = self._moves, []
        return moves

    def admit(self, sequence: Sequence, cached_tokens: int, now_seconds: float) -> None:
        """It holds blocks for all its tokens now; `cached_tokens` need no computation."""
        if sequence.state is SequenceState.PREEMPTED:
            self._moves.append(Readmitted(sequence.sequence_id, cached_tokens, now_seconds))
        sequence.admitted(cached_tokens, now_seconds)
        self._sequences.append(sequence)

    def end(self, sequence: Sequence) -> None:
        """Takes one out for good; its blocks are free at once."""
        self._sequences.remove(sequence)
        self._manager.release(sequence.sequence_id)

    def preempt(
        self, preemption: PreemptionPlan, reason: PreemptionReason, now_seconds: float
    ) -> list[Sequence]:
        """Carries a plan out; answers the victims."""
        by_id = {sequence.sequence_id: sequence for sequence in self._sequences}
        victims = []
        for taken in preemption.victims:
            victim = by_id[taken.sequence_id]
            is_swapped = taken.mode is PlannedMode.SWAP and self._tiers.swap_out(victim)
            self._take(victim, reason, now_seconds, taken.keep_blocks, is_swapped=is_swapped)
            victims.append(victim)
        return victims

    def preempt_one(self, sequence: Sequence, reason: PreemptionReason, now_seconds: float) -> None:
        """Takes its blocks; what is published of them can be hit when it comes back."""
        self._take(sequence, reason, now_seconds)

    def preempt_all_but_one(self, reason: PreemptionReason, now_seconds: float) -> int:
        """Takes the blocks of all but the first of the highest rank; answers of how many."""
        if not self._sequences:
            return 0
        kept = max(self._sequences, key=lambda sequence: sequence.priority)
        victims = [sequence for sequence in self._sequences if sequence is not kept]
        for victim in victims:
            self._take(victim, reason, now_seconds)
        return len(victims)

    def _take(
        self,
        victim: Sequence,
        reason: PreemptionReason,
        now_seconds: float,
        keep_blocks: int = 0,
        *,
        is_swapped: bool = False,
    ) -> None:
        sequence_id = victim.sequence_id
        done = self._manager.preempt(sequence_id, keep_blocks=keep_blocks, swapped=is_swapped)
        mode = PreemptionMode[done.name]
        is_trimmed = mode is PreemptionMode.TRIM
        kept_tokens = keep_blocks * self._manager.block_tokens if is_trimmed else 0
        lost_tokens = max(0, victim.computed_tokens - kept_tokens)
        self._moves.append(Preempted(sequence_id, mode, reason, lost_tokens, now_seconds))
        self._counts[mode, reason] += 1
        self._sequences.remove(victim)
        victim.preempted(now_seconds)
        self._waiting.add(victim)
