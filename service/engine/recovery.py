"""What the engine does when the device had no memory for a step: the rungs of the OOM ladder."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from service.device.errors import DeviceOutOfMemoryError
from service.device.memory import DeviceMemory
from service.engine.figures import Incident, OomRung
from service.engine.ladder import OomLadder
from service.engine.live_sequences import LiveSequences
from service.engine.memory_watch import MemoryWatch
from service.engine.policy import Chunk
from service.engine.request import Sequence
from service.engine.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class Shortage:
    """The facts of an allocation that failed, without the traceback that holds its tensors."""

    cause: str
    wanted_bytes: int

    @classmethod
    def of(cls, error: DeviceOutOfMemoryError) -> Shortage:
        """What is worth keeping of `error`."""
        return cls(str(error), error.wanted_bytes)


class OomRecovery:
    """Climbs the ladder, one rung for each step in a row that fails."""

    def __init__(
        self,
        ladder: OomLadder,
        device: DeviceMemory,
        watch: MemoryWatch,
        scheduler: Scheduler,
        live: LiveSequences,
        tell: Callable[[Incident], None],
    ) -> None:
        """`tell` hears of each rung before it is taken: the process may not outlive it."""
        self._ladder = ladder
        self._device = device
        self._watch = watch
        self._scheduler = scheduler
        self._live = live
        self._tell = tell

    def answer(self, shortage: Shortage, chunks: list[Chunk], now_seconds: float) -> None:
        """Takes the next rung. Of `chunks`, which failed, nothing counts as written."""
        step_tokens = sum(chunk.count for chunk in chunks)
        measure = self._ladder.failed(step_tokens, shortage.wanted_bytes, now_seconds)
        self._tell(
            Incident(
                kind="oom",
                cause=shortage.cause,
                rung=measure.rung,
                wanted_bytes=shortage.wanted_bytes,
                sequence_ids=[chunk.sequence.sequence_id for chunk in chunks],
                step_tokens=step_tokens,
                vitals=self._watch.observe(now_seconds),
            )
        )
        self._device.release_cached()
        if measure.rung is OomRung.REQUEUE:
            self._scheduler.preempt_all_but_one(now_seconds)
        if measure.shrink_bytes:
            waits = measure.rung is OomRung.SHRINK
            floor_blocks = self._scheduler.largest_blocks(and_waiting=waits)
            self._watch.shrink(measure.shrink_bytes, floor_blocks, now_seconds)
        if measure.rung is OomRung.FAIL:
            self._fail([chunk.sequence for chunk in chunks], shortage)

    def _fail(self, sequences: Iterable[Sequence], shortage: Shortage) -> None:
        """Ends what does not even fit alone."""
        figures = self._device.figures()
        for sequence in sequences:
            self._scheduler.remove(sequence)
            self._live.exhaust(
                sequence, shortage.wanted_bytes, figures.headroom_bytes, figures.total_bytes
            )
