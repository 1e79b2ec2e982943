"""How near memory is to its end, as one of four levels: that of the blocks, that of the device."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvcache.pressure import LevelLatch, PressureLevel, Threshold
from service.engine.margins import Margins
from service.engine.readings import GovernorReading

_HELD_HYSTERESIS_SHARE = 0.1
_KV_SECONDS = {
    PressureLevel.HIGH: Threshold(enter=5.0, leave=8.0),
    PressureLevel.ELEVATED: Threshold(enter=30.0, leave=45.0),
}
_DEVICE_SECONDS = {
    PressureLevel.CRITICAL: Threshold(enter=1.0, leave=1.5),
    PressureLevel.HIGH: Threshold(enter=5.0, leave=8.0),
    PressureLevel.ELEVATED: Threshold(enter=30.0, leave=45.0),
}
# A forecast for the device counts while less of it than this is free: above, what others take
# and give back would be told as the end of memory.
_FORECAST_SHARE = 0.25
_CRITICAL_RATIO = Threshold(enter=1.0, leave=1.1)  # of headroom to the demand of a narrow step
_CALM_SECONDS = 5.0  # a level is left when it was not reached for so long
# One that was only forecast is left sooner: while it lasts, requests wait for memory that is there.
_FORECAST_CALM_SECONDS = 1.5


class KvPressure:
    """How near the pool is to having no block: then somebody waits, but nothing fails."""

    def __init__(self, elevated_share: float, high_share: float) -> None:
        """Shares of held blocks at which the levels ELEVATED and HIGH are entered."""
        self._held_shares = {
            PressureLevel.HIGH: _falling_from(high_share),
            PressureLevel.ELEVATED: _falling_from(elevated_share),
        }
        self._latch = LevelLatch(_CALM_SECONDS)
        self.level = PressureLevel.NORMAL

    def look(self, reading: GovernorReading) -> None:
        """Takes note of a reading."""
        held_share = reading.held_blocks / max(1, reading.pool_blocks)
        reached = max(
            _level_of(held_share, self._held_shares, self.level),
            _level_of(reading.kv_exhaustion_seconds, _KV_SECONDS, self.level),
            PressureLevel.HIGH if reading.preempted else PressureLevel.NORMAL,
        )
        self.level = self._latch.reach(reading.now_seconds, reached)


class DevicePressure:
    """How near a step is to finding no memory on the device."""

    def __init__(self) -> None:
        self._latch = LevelLatch(_CALM_SECONDS)
        self._forecast_latch = LevelLatch(_FORECAST_CALM_SECONDS)
        self._looked_seconds = -math.inf
        self.level = PressureLevel.NORMAL

    def look(
        self,
        reading: GovernorReading,
        margins: Margins,
        *,
        headroom_bytes: int,
        exhaustion_seconds: float,
        is_pool_held: bool,
    ) -> None:
        """Takes note of a reading.

        `headroom_bytes` are those that steps will find, `is_pool_held`: the pool is smaller
        than was ordered.
        """
        level = self.level
        narrow_ratio = headroom_bytes / max(1, reading.narrow_demand_bytes)
        full_ratio = headroom_bytes / max(1, reading.demand_bytes)
        full_ratios = {PressureLevel.HIGH: margins.high, PressureLevel.ELEVATED: margins.elevated}
        reached = max(
            _level_of(narrow_ratio, {PressureLevel.CRITICAL: _CRITICAL_RATIO}, level),
            _level_of(full_ratio, full_ratios, level),
            PressureLevel.ELEVATED if is_pool_held else PressureLevel.NORMAL,
        )
        forecast = PressureLevel.NORMAL
        if headroom_bytes < _FORECAST_SHARE * reading.device_total_bytes:
            forecast = _level_of(exhaustion_seconds, _DEVICE_SECONDS, level)
        if reading.oom_seconds is not None and reading.oom_seconds >= self._looked_seconds:
            reached = PressureLevel.CRITICAL
        self._looked_seconds = reading.now_seconds
        self.level = max(
            self._latch.reach(reading.now_seconds, reached),
            self._forecast_latch.reach(reading.now_seconds, forecast),
        )


def _falling_from(share: float) -> Threshold:
    return Threshold(enter=share, leave=share - _HELD_HYSTERESIS_SHARE)


def _level_of(
    value: float, thresholds: Mapping[PressureLevel, Threshold], level: PressureLevel
) -> PressureLevel:
    """The highest level whose threshold holds; `level`: the one before."""
    reached = (
        candidate
        for candidate, threshold in thresholds.items()
        if threshold.holds(value, entered=level >= candidate)
    )
    return max(reached, default=PressureLevel.NORMAL)
