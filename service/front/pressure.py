"""Pressure of the KV pool as one of four levels, with hysteresis.

A level is entered at its threshold and left only when the reading has fallen clearly below
it, so that a pool at the edge does not flap between two levels with every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvcache.pressure import PressureLevel
from service.engine.figures import EngineStats


@dataclass(frozen=True, slots=True)
class Threshold:
    """Shares between 0 and 1 at which a level is entered and left."""

    enter: float
    leave: float


_QUEUE_CRITICAL = Threshold(enter=1.0, leave=0.75)
_HYSTERESIS_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class PressureReading:
    """What the level is computed from."""

    held_share: float  # of the pool, cached blocks counted as free
    queue_share: float  # waiting requests of the most that may wait
    preempted: int


def read_pressure(
    stats: EngineStats, waiting_requests: int, max_waiting_requests: int
) -> PressureReading:
    """The reading of an engine and its queue."""
    return PressureReading(
        held_share=stats.held_share,
        queue_share=waiting_requests / max_waiting_requests,
        preempted=stats.preempted,
    )


class PressurePolicy:
    """The thresholds of one server, and the level that they give."""

    def __init__(self, elevated_share: float, high_share: float) -> None:
        """Shares of held blocks at which the levels ELEVATED and HIGH are entered."""
        self._held_elevated = Threshold(elevated_share, elevated_share - _HYSTERESIS_SHARE)
        self._held_high = Threshold(high_share, high_share - _HYSTERESIS_SHARE)

    def next_level(self, level: PressureLevel, reading: PressureReading) -> PressureLevel:
        """The level after `reading`, when it was `level` before."""

        def holds(value: float, threshold: Threshold, candidate: PressureLevel) -> bool:
            return value >= (threshold.leave if level >= candidate else threshold.enter)

        if holds(reading.queue_share, _QUEUE_CRITICAL, PressureLevel.CRITICAL):
            return PressureLevel.CRITICAL
        if reading.preempted or holds(reading.held_share, self._held_high, PressureLevel.HIGH):
            return PressureLevel.HIGH
        if holds(reading.held_share, self._held_elevated, PressureLevel.ELEVATED):
            return PressureLevel.ELEVATED
        return PressureLevel.NORMAL
