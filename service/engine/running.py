"""The sequences in the batch, and how they lose their blocks."""

from __future__ import annotations

from collections.abc import Iterator

from kvcache import CacheManager, PreemptionMode, PreemptionPlan
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

    def add(self, sequence: Sequence) -> None:
        """It was admitted: it holds blocks for all its tokens."""
        self._sequences.append(sequence)

    def end(self, sequence: Sequence) -> None:
        """Takes one out for good; its blocks are free at once."""
        self._sequences.remove(sequence)
        self._manager.release(sequence.sequence_id)

    def preempt(self, preemption: PreemptionPlan, now_seconds: float) -> list[Sequence]:
        """Carries a plan out; answers the victims."""
        by_id = {sequence.sequence_id: sequence for sequence in self._sequences}
        victims = []
        for taken in preemption.victims:
            victim = by_id[taken.sequence_id]
            is_swapped = taken.mode is PreemptionMode.SWAP and self._tiers.swap_out(victim)
            self._take(victim, now_seconds, keep_blocks=taken.keep_blocks, is_swapped=is_swapped)
            victims.append(victim)
        return victims

    def preempt_one(self, sequence: Sequence, now_seconds: float) -> None:
        """Takes its blocks; what is published of them can be hit when it comes back."""
        self._take(sequence, now_seconds, keep_blocks=0, is_swapped=False)

    def preempt_all_but_one(self, now_seconds: float) -> int:
        """Takes the blocks of all but the first of the highest rank; answers of how many."""
        if not self._sequences:
            return 0
        kept = max(self._sequences, key=lambda sequence: sequence.priority)
        victims = [sequence for sequence in self._sequences if sequence is not kept]
        for victim in victims:
            self._take(victim, now_seconds, keep_blocks=0, is_swapped=False)
        return len(victims)

    def _take(
        self, victim: Sequence, now_seconds: float, *, keep_blocks: int, is_swapped: bool
    ) -> None:
        self._manager.preempt(victim.sequence_id, keep_blocks=keep_blocks, swapped=is_swapped)
        self._sequences.remove(victim)
        victim.preempted(now_seconds)
        self._waiting.add(victim)
