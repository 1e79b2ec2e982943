"""What to do before memory runs out. Pure: readings in, decisions out.

Two things can run out. *Blocks*: then sequences are preempted, and somebody waits. *Device
memory*: then a step fails. A pool that may change its size couples the two, since what it gives
back is there for a step. Both set the level; only device memory is a reason to take memory from
the pool, to prefill less at a time and to admit nobody.

The one near-exact sign of a step that is about to fail is headroom, what an allocation can
get, against demand, what the largest next step takes; the rest says how soon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kvcache.pressure import LevelLatch, PressureLevel, Threshold, Trend, clamp_seconds
from service.engine.figures import GovernorAction
from service.engine.margins import Margins, margins
from service.engine.pool_goal import PoolGoal
from service.engine.readings import GovernorReading

LOOK_SECONDS = 0.1  # least time between two looks

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
_OOM_SECONDS = 5.0  # after the ladder had to act, the level stays CRITICAL
_CALM_SECONDS = 2.0  # a level is left when it has not held for so long
_PREFILL_DIVISORS = {PressureLevel.HIGH: 2, PressureLevel.CRITICAL: 4}
_TREND_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class GovernorDecision:
    """What is in force until the next look."""

    level: PressureLevel
    step_tokens: int
    prefill_tokens: int  # of them
    admits: bool
    pool_goal_blocks: int  # the ceiling: nothing is held back
    kv_exhaustion_seconds: float
    device_exhaustion_seconds: float
    actions: tuple[GovernorAction, ...] = ()  # begun with this decision


class Governor:
    """Remembers what it needs for hysteresis and trends; look with `decide`."""

    def __init__(self, elevated_share: float, high_share: float, step_tokens: int) -> None:
        """The settings pressure_elevated_share, pressure_high_share and max_step_tokens."""
        self._held_shares = {
            PressureLevel.HIGH: _falling_from(high_share),
            PressureLevel.ELEVATED: _falling_from(elevated_share),
        }
        self._step_tokens = step_tokens
        self._pool = PoolGoal()
        self._spare_trend = Trend(_TREND_SECONDS)
        self._most_spare_bytes = 0  # that was ever seen: nobody else takes memory then
        self._kv_latch = LevelLatch(_CALM_SECONDS)
        self._device_latch = LevelLatch(_CALM_SECONDS)
        self._kv_level = self._device_level = PressureLevel.NORMAL
        self._admits = True
        self._looked_seconds = -math.inf

    def prefill_tokens(self, level: PressureLevel) -> int:
        """Prefill tokens of a step when device memory is at `level`."""
        return max(1, self._step_tokens // _PREFILL_DIVISORS.get(level, 1))

    def is_due(self, now_seconds: float) -> bool:
        """Whether it is time to look again."""
        return now_seconds >= self._looked_seconds + LOOK_SECONDS

    def pool_gave(self, now_seconds: float, left_blocks: int) -> None:
        """The pool was made smaller in need: it is not to grow again at once."""
        self._pool.lower(now_seconds, left_blocks)

    def decide(self, reading: GovernorReading) -> GovernorDecision:
        """The decision on a new reading."""
        now_seconds = self._looked_seconds = reading.now_seconds
        self._spare_trend.add(now_seconds, reading.spare_bytes)
        self._most_spare_bytes = max(self._most_spare_bytes, reading.spare_bytes)
        demand_bytes = max(1, reading.demand_bytes)
        rest_bytes = self._most_spare_bytes - reading.ceiling_blocks * reading.block_bytes
        limits = margins(rest_bytes / demand_bytes)
        exhaustion_seconds = self._spare_trend.seconds_until(
            reading.pool_blocks * reading.block_bytes + reading.demand_bytes
        )
        goal_blocks, pool_action = self._pool.next(
            reading, limits, self._spare_trend.fall_per_second
        )
        self._kv_level = self._kv_latch.reach(now_seconds, self._kv_pressure(reading))
        before = self._device_level
        pressure = self._device_pressure(reading, limits, exhaustion_seconds)
        if goal_blocks < reading.ceiling_blocks:
            pressure = max(pressure, PressureLevel.ELEVATED)
        self._device_level = self._device_latch.reach(now_seconds, pressure)
        admitted = self._admits
        self._admits = self._device_level < PressureLevel.CRITICAL or not reading.running
        begun = {
            GovernorAction.NARROW: self._is_narrower_than(before),
            GovernorAction.CLOSE: admitted and not self._admits,
        }
        return GovernorDecision(
            level=max(self._kv_level, self._device_level),
            step_tokens=self._step_tokens,
            prefill_tokens=self.prefill_tokens(self._device_level),
            admits=self._admits,
            pool_goal_blocks=goal_blocks,
            kv_exhaustion_seconds=clamp_seconds(reading.kv_exhaustion_seconds),
            device_exhaustion_seconds=exhaustion_seconds,
            actions=(
                *(action for action, is_begun in begun.items() if is_begun),
                *([pool_action] if pool_action else []),
            ),
        )

    def _is_narrower_than(self, level: PressureLevel) -> bool:
        return self.prefill_tokens(self._device_level) < self.prefill_tokens(level)

    def _kv_pressure(self, reading: GovernorReading) -> PressureLevel:
        """How near the pool is to its end: somebody waits then, but nothing fails."""
        if reading.preempted:
            return PressureLevel.HIGH
        level = self._kv_level
        held_share = reading.held_blocks / max(1, reading.pool_blocks)
        return max(
            _level_of(held_share, self._held_shares, level),
            _level_of(reading.kv_exhaustion_seconds, _KV_SECONDS, level),
        )

    def _device_pressure(
        self, reading: GovernorReading, limits: Margins, exhaustion_seconds: float
    ) -> PressureLevel:
        """How near a step is to finding no memory."""
        level = self._device_level
        oom_seconds = reading.oom_seconds
        if oom_seconds is not None and reading.now_seconds - oom_seconds < _OOM_SECONDS:
            return PressureLevel.CRITICAL
        narrow_ratio = reading.headroom_bytes / max(1, reading.narrow_demand_bytes)
        if _CRITICAL_RATIO.holds(narrow_ratio, entered=level >= PressureLevel.CRITICAL):
            return PressureLevel.CRITICAL
        ratios = {PressureLevel.HIGH: limits.high, PressureLevel.ELEVATED: limits.elevated}
        found = _level_of(reading.headroom_bytes / max(1, reading.demand_bytes), ratios, level)
        if reading.headroom_bytes < _FORECAST_SHARE * reading.device_total_bytes:
            found = max(found, _level_of(exhaustion_seconds, _DEVICE_SECONDS, level))
        return found


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
