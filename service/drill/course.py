"""All that was seen of one drill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from service.drill.phase import Stage
from service.drill.record import Reference, StreamRecord
from service.drill.sample import Sample


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """When a phase was; times are seconds since the beginning of the drill."""

    stage: Stage
    begin_seconds: float
    end_seconds: float
    is_complete: bool = True  # False: it did not come to its end within its limit


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What served."""

    model: str
    version: str
    device: str
    weights_dtype: str
    kv_cache_dtype: str

    @property
    def is_exact(self) -> bool:
        """Whether a resumed stream can be held to the last bit of its logits."""
        return self.weights_dtype == "float32" and self.kv_cache_dtype == "float32"


@dataclass(frozen=True, slots=True)
class Course:
    """All that was seen of one drill, in order of time."""

    server: ServerFacts
    phases: Sequence[PhaseMark]
    samples: Sequence[Sample]
    streams: Sequence[StreamRecord]
    references: Sequence[Reference]
    balloon_bytes: int  # that the balloon was to take
    cut_short: str = ""  # why not all phases were run

    @property
    def duration_seconds(self) -> float:
        return self.phases[-1].end_seconds if self.phases else 0.0

    def phase(self, stage: Stage) -> PhaseMark | None:
        """None: it did not come to it."""
        return next((mark for mark in self.phases if mark.stage is stage), None)
