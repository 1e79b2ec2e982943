"""The signals of the last minute."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from service.engine.figures import EngineStats, Vitals

KEPT_SECONDS = 60.0
_INTERVAL_SECONDS = 0.1  # the governor looks no more often

_NESTED = ("tiers", "vitals")
_ENGINE_COLUMNS = tuple(f for f in EngineStats.__struct_fields__ if f not in _NESTED)
_VITALS_COLUMNS = (
    *(f for f in Vitals.__struct_fields__ if f != "taken_seconds"),
    "headroom_bytes",
)

# A column each, oldest value first; `seconds` counts to the moment of the record, and is thus
# negative. The columns of `vitals` are None where there were none.
Columns: TypeAlias = dict[str, list[Any]]


class Signals(msgspec.Struct, frozen=True):
    """The last minute, as columns of one length."""

    seconds: list[float]
    engine_life: list[int]  # which engine spoke; its counters count from its start
    live_requests: list[int]  # of the front
    engine: Columns  # the fields of EngineStats
    vitals: Columns  # the fields of Vitals, and headroom_bytes


@dataclass(frozen=True, slots=True)
class Sample:
    """What was known at one moment."""

    seconds: float  # monotonic
    engine_life: int
    live_requests: int
    stats: EngineStats


class SignalRing:
    """Keeps samples of the last minute, ten a second at most and the last of all.

    Cheap enough for every step. The last one matters most: it is what an engine said right
    before it died.
    """

    def __init__(self) -> None:
        # Samples come by a clock that can be off by a beat: room for one more than fit.
        self._samples: deque[Sample] = deque(maxlen=round(KEPT_SECONDS / _INTERVAL_SECONDS) + 1)
        self._next_seconds = float("-inf")
        self._last: Sample | None = None

    def add(self, sample: Sample) -> None:
        """Takes a sample; one that is too near to the kept one lives until the next."""
        self._last = sample
        if sample.seconds >= self._next_seconds:
            self._samples.append(sample)
            self._next_seconds = sample.seconds + _INTERVAL_SECONDS

    def since(self, seconds: float) -> list[Sample]:
        """Those of a time and later, oldest first."""
        samples = [*self._samples]
        if self._last is not None and self._last is not samples[-1]:
            samples.append(self._last)
        return [sample for sample in samples if sample.seconds >= seconds]


def columns(samples: Sequence[Sample], now_seconds: float) -> Signals:
    """The samples as they are written down."""
    vitals = [sample.stats.vitals for sample in samples]
    return Signals(
        seconds=[round(sample.seconds - now_seconds, 3) for sample in samples],
        engine_life=[sample.engine_life for sample in samples],
        live_requests=[sample.live_requests for sample in samples],
        engine={
            name: list(map(attrgetter(name), (sample.stats for sample in samples)))
            for name in _ENGINE_COLUMNS
        },
        vitals={
            name: [None if one is None else getattr(one, name) for one in vitals]
            for name in _VITALS_COLUMNS
        }
        if any(one is not None for one in vitals)
        else {},
    )
