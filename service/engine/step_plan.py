"""What the scheduler decides for one step."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvcache import NeverFits
from service.engine.policy import Chunk, StepBudget
from service.engine.request import Sequence


@dataclass(slots=True)
class StepPlan:
    """What the step computes, and what became of sequences while it was planned."""

    chunks: list[Chunk] = field(default_factory=list)  # decode tokens first
    started: list[Sequence] = field(default_factory=list)  # admitted for the first time
    refused: list[tuple[Sequence, NeverFits]] = field(default_factory=list)
    evicted: list[Sequence] = field(default_factory=list)  # outgrew the whole pool
    preempted: list[Sequence] = field(default_factory=list)

    def schedule(self, sequence: Sequence, budget: StepBudget) -> None:
        """Adds as much of a running sequence as the budget has room for, perhaps nothing."""
        start = sequence.computed_tokens
        count = budget.take(start, sequence.remaining_tokens, sequence.missing_prompt_logprobs)
        if count:
            self.chunks.append(Chunk(sequence, start, count))

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all happened."""
        return not (self.chunks or self.refused or self.evicted or self.preempted)


class NoProgress(Exception):
    """There is work, but several steps in a row could do none of it: a defect, told loudly."""

    def __init__(self, steps: int, running: list[Sequence], waiting: list[Sequence]) -> None:
        self.running = running
        self.waiting = waiting
        super().__init__(
            f"nothing could be scheduled in {steps} steps: "
            f"running {running}, waiting {waiting[:8]} ({len(waiting)} in all)"
        )
