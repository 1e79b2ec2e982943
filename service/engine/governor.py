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
from dataclasses import dataclass

from kvcache.pressure import PressureLevel, Trend, clamp_seconds
from service.engine.figures import GovernorAction
from service.engine.levels import DevicePressure, KvPressure
from service.engine.margins import Margins, margins
from service.engine.pool_goal import PoolGoal
from service.engine.readings import GovernorReading

LOOK_SECONDS = 0.1  # least time between two looks

_PREFILL_DIVISORS = {PressureLevel.HIGH: 2, PressureLevel.CRITICAL: 4}
_TREND_SECONDS = 0.7


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
        self._step_tokens = step_tokens
        self._kv = KvPressure(elevated_share, high_share)
        self._device = DevicePressure()
        self._pool = PoolGoal()
        self._spare_trend = Trend(_TREND_SECONDS)
        self._most_spare_bytes = 0  # that was ever seen: nobody else took memory then
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
        self._looked_seconds = reading.now_seconds
        before, admitted = self._device.level, self._admits
        self._spare_trend.add(reading.now_seconds, reading.spare_bytes)
        limits = self._margins(reading)
        goal_blocks, pool_action = self._pool.next(
            reading, limits, self._spare_trend.fall_per_second
        )
        too_little_bytes = reading.narrow_demand_bytes - 1
        exhaustion_seconds = self._spare_trend.seconds_until(
            reading.pool_blocks * reading.block_bytes + too_little_bytes
        )
        self._kv.look(reading)
        self._device.look(
            reading,
            limits,
            headroom_bytes=reading.headroom_with(max(goal_blocks, reading.pool_blocks)),
            exhaustion_seconds=exhaustion_seconds,
            is_pool_held=goal_blocks < reading.ceiling_blocks,
        )
        level = self._device.level
        self._admits = level < PressureLevel.CRITICAL or not reading.running
        begun = {
            GovernorAction.NARROW: self.prefill_tokens(level) < self.prefill_tokens(before),
            GovernorAction.CLOSE: admitted and not self._admits,
            pool_action: pool_action is not None,
        }
        return GovernorDecision(
            level=max(self._kv.level, level),
            step_tokens=self._step_tokens,
            prefill_tokens=self.prefill_tokens(level),
            admits=self._admits,
            pool_goal_blocks=goal_blocks,
            kv_exhaustion_seconds=clamp_seconds(reading.kv_exhaustion_seconds),
            device_exhaustion_seconds=exhaustion_seconds,
            actions=tuple(action for action in GovernorAction if begun.get(action)),
        )

    def _margins(self, reading: GovernorReading) -> Margins:
        """Those of the headroom at rest: with the pool as ordered, and no neighbour."""
        self._most_spare_bytes = max(self._most_spare_bytes, reading.spare_bytes)
        rest_bytes = self._most_spare_bytes - reading.ceiling_blocks * reading.block_bytes
        return margins(rest_bytes / max(1, reading.demand_bytes))
