"""Pressure on this server: that of its engine's memory, or of its queue, whichever is higher."""

from __future__ import annotations

from kvcache.pressure import PressureLevel, Threshold
from service.engine.figures import EngineStats

_QUEUE_CRITICAL = Threshold(enter=1.0, leave=0.75)  # waiting requests of the most that may wait


class PressurePolicy:
    """The level of one server; the governor in the engine tells that of its memory."""

    def __init__(self, max_waiting_requests: int) -> None:
        """The setting of this name."""
        self._max_waiting_requests = max_waiting_requests
        self._queue_is_full = False

    def level(self, stats: EngineStats, waiting_requests: int) -> PressureLevel:
        """The level now; before the engine has looked at its memory, that of the queue."""
        queue_share = waiting_requests / self._max_waiting_requests
        self._queue_is_full = _QUEUE_CRITICAL.holds(queue_share, entered=self._queue_is_full)
        if self._queue_is_full:
            return PressureLevel.CRITICAL
        return PressureLevel.NORMAL if stats.vitals is None else stats.vitals.level
