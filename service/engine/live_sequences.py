"""The sequences of the engine, from their submission to the message that tells their end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from service.engine.messages import (
    Exhausted,
    Failed,
    Finished,
    FinishReason,
    Refused,
    SequenceSpec,
)
from service.engine.request import Sequence, SequenceState


class DuplicateSequence(Exception):
    """A sequence id was submitted while a sequence of that id is live."""

    def __init__(self, sequence_id: int) -> None:
        self.sequence_id = sequence_id
        super().__init__(f"sequence {sequence_id} is live already")


@dataclass(slots=True)
class Ends:
    """How sequences ended, each once."""

    finished: list[Finished] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    exhausted: list[Exhausted] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.finished or self.refused or self.failed or self.exhausted)


class LiveSequences:
    """All that wait or run, by id, and the ends that were not told yet."""

    def __init__(self, on_finish: Callable[[Sequence, FinishReason], None]) -> None:
        """`on_finish` hears of the sequences that get an end that was wanted."""
        self._on_finish = on_finish
        self._sequences: dict[int, Sequence] = {}
        self._arrivals = 0
        self._ends = Ends()

    @property
    def has_ends(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._ends)

    def get(self, sequence_id: int) -> Sequence | None:
        """A live sequence; None for an id that is unknown or over."""
        return self._sequences.get(sequence_id)

    def enter(self, spec: SequenceSpec) -> Sequence:
        """Makes a sequence live; raises DuplicateSequence for an id that is."""
        if spec.sequence_id in self._sequences:
            raise DuplicateSequence(spec.sequence_id)
        sequence = Sequence(spec, self._arrivals)
        self._arrivals += 1
        self._sequences[spec.sequence_id] = sequence
        return sequence

    def finish(self, sequence: Sequence, reason: FinishReason, now_seconds: float) -> None:
        """It is over, by itself or by an abort."""
        del self._sequences[sequence.sequence_id]
        self._on_finish(sequence, reason)
        self._ends.finished.append(sequence.finished(reason, now_seconds))

    def refuse(
        self, sequence: Sequence, needed_blocks: int, total_blocks: int, limit_tokens: int
    ) -> None:
        """It can never run here."""
        self._end(sequence)
        self._ends.refused.append(
            Refused(sequence.sequence_id, needed_blocks, total_blocks, limit_tokens)
        )

    def fail(self, sequence: Sequence, cause: str) -> None:
        """The model cannot go on with it."""
        self._end(sequence)
        self._ends.failed.append(Failed(sequence.sequence_id, cause))

    def exhaust(
        self, sequence: Sequence, wanted_bytes: int, free_bytes: int, total_bytes: int
    ) -> None:
        """The device has no memory for it."""
        self._end(sequence)
        self._ends.exhausted.append(
            Exhausted(sequence.sequence_id, wanted_bytes, free_bytes, total_bytes)
        )

    def take_ends(self) -> Ends:
        """What ended since the last call."""
        ends, self._ends = self._ends, Ends()
        return ends

    def _end(self, sequence: Sequence) -> None:
        del self._sequences[sequence.sequence_id]
        sequence.state = SequenceState.FINISHED
