"""`python tests/troubled_engine.py [options] --fd N`: the scripted engine, with memory that ends.

A prompt of trouble counts as COUNT does. Before the token of one index, in the first engine that
computes it, the engine tells of an incident, or sees the pressure level CRITICAL, and then
perhaps dies:

    [TROUBLE, index, trouble, ending]
"""

from __future__ import annotations

import enum
import os
import resource
import signal
import time
from typing import Any

import msgspec
import scripted_engine
from flight_fakes import vitals
from scripted_engine import COUNT

from kvcache.pressure import PressureLevel
from service.engine.figures import EngineStats, Incident, OomRung
from service.engine.messages import Exhausted, IncidentReport, SequenceSpec

TROUBLE = 1100


class Trouble(enum.IntEnum):
    """What comes before the token."""

    NONE = 0
    RUNG = 1  # a step finds no memory
    DEVICE_LOST = 2
    CRITICAL = 3  # until that token is there
    STORM = 4  # all rungs, ten times
    EXHAUSTED = 5  # the last rung: this sequence does not even fit alone
    STRANGERS = 6  # a rung of sequences that the front does not know


class Ending(enum.IntEnum):
    """What comes after the trouble."""

    NONE = 0
    KILLED = 1
    ABORTED = 2


def trouble_prompt(index: int, trouble: Trouble, ending: Ending = Ending.NONE) -> list[int]:
    """A prompt that makes trouble before the token of this index."""
    return [TROUBLE, index, trouble, ending]


class TroubledEngine(scripted_engine.Engine):
    """Watches for the moment of each trouble."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._troubles: dict[int, list[int]] = {}
        self._level = PressureLevel.NORMAL
        self._rungs = [0] * len(OomRung)
        super().__init__(*arguments, **options)

    def _submit(self, spec: SequenceSpec) -> None:
        if spec.prompt_ids[0] == TROUBLE:
            if not spec.resumed:
                self._troubles[spec.sequence_id] = spec.prompt_ids[1:]
            spec = msgspec.structs.replace(spec, prompt_ids=[COUNT, *spec.prompt_ids[1:]])
        super()._submit(spec)

    def _step(self) -> None:
        self._level = PressureLevel.NORMAL
        for sequence_id, (index, trouble, ending) in list(self._troubles.items()):
            sequence = self._sequences.get(sequence_id)
            if sequence is not None and len(sequence.outputs) == index:
                del self._troubles[sequence_id]
                self._suffer(Trouble(trouble), sequence_id)
                self._end(Ending(ending))
        super()._step()

    def _suffer(self, trouble: Trouble, sequence_id: int) -> None:
        match trouble:
            case Trouble.RUNG:
                self._tell("oom", OomRung.RETRY)
            case Trouble.STRANGERS:
                self._tell("oom", OomRung.REQUEUE, [10**9, 10**9 + 1])
            case Trouble.EXHAUSTED:
                self._tell("oom", OomRung.FAIL, [sequence_id])
                del self._sequences[sequence_id]
                self._report.exhausted.append(Exhausted(sequence_id, 4096, 7, 1000))
            case Trouble.STORM:
                for _ in range(10):
                    for rung in OomRung:
                        self._tell("oom", rung)
            case Trouble.DEVICE_LOST:
                self._tell("device lost", None)
            case Trouble.CRITICAL:
                self._level = PressureLevel.CRITICAL

    def _tell(self, kind: str, rung: OomRung | None, batch: list[int] | None = None) -> None:
        if rung is not None:
            self._rungs[list(OomRung).index(rung)] += 1
        incident = Incident(
            kind=kind,
            cause=f"{kind} as ordered",
            rung=rung,
            wanted_bytes=0 if rung is None else 4096,
            sequence_ids=list(self._sequences) if batch is None else batch,
            step_tokens=64,
            vitals=vitals(
                taken_seconds=time.monotonic(), device_free_bytes=7, rungs=tuple(self._rungs)
            ),
        )
        self._channel.send(IncidentReport(incident))

    def _end(self, ending: Ending) -> None:
        match ending:
            case Ending.KILLED:
                os.kill(os.getpid(), signal.SIGKILL)
            case Ending.ABORTED:
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                os.abort()

    def _stats(self) -> EngineStats:
        facts = vitals(taken_seconds=time.monotonic(), level=self._level, rungs=tuple(self._rungs))
        return msgspec.structs.replace(super()._stats(), vitals=facts)


if __name__ == "__main__":
    scripted_engine.Engine = TroubledEngine  # type: ignore[misc]
    scripted_engine.main()
