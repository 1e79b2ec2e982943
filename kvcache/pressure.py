"""Pressure on memory: levels with hysteresis, and when a falling reading reaches its end.

How soon the blocks of a pool run out is forecast in `kvcache.forecast`.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from kvcache.errors import InvalidArgumentError

# A forecast of "not in sight". Finite, so that it can be drawn, compared and averaged.
FOREVER_SECONDS = 86_400.0


class PressureLevel(enum.IntEnum):
    """How near the end of memory is. The numbers are those of `plimsoll.v1.PressureLevel`."""

    NORMAL = 1
    ELEVATED = 2
    HIGH = 3
    CRITICAL = 4


@dataclass(frozen=True, slots=True)
class Threshold:
    """Where a level is entered, and where it is left again.

    `leave` below `enter` is for readings that are bad when they are high, such as a share in
    use; `leave` above `enter` for those that are bad when they are low, such as what is left.
    A reading between the two changes nothing, so that one at the edge does not flap.
    """

    enter: float
    leave: float

    def holds(self, value: float, *, entered: bool) -> bool:
        """Whether the level holds at `value`; `entered`: whether it did before."""
        bound = self.leave if entered else self.enter
        if self.leave <= self.enter:
            return value >= bound
        return value < bound


def clamp_seconds(seconds: float) -> float:
    """A forecast between 0 and FOREVER_SECONDS; what is no number is not in sight."""
    if math.isnan(seconds):
        return FOREVER_SECONDS
    return min(max(seconds, 0.0), FOREVER_SECONDS)


class Trend:
    """How fast a reading falls: means over the recent past, with exponentially falling weights.

    What was seen counts by the time it lasted, so the answer does not depend on how often one
    looks. A fall that came at once is over, and says little of what comes next: the mean slope
    counts by the share of the time in which the reading fell.
    """

    __slots__ = ("_falling_share", "_memory_seconds", "_seconds", "_slope", "_value")

    def __init__(self, memory_seconds: float) -> None:
        """After `memory_seconds`, what was seen before counts for 1/e of the whole."""
        if not 0.0 < memory_seconds < math.inf:
            raise InvalidArgumentError("memory_seconds", memory_seconds, "above 0 and finite")
        self._memory_seconds = memory_seconds
        self._seconds: float | None = None  # of the newest reading
        self._value = 0.0
        self._slope = 0.0
        self._falling_share = 0.0

    def add(self, now_seconds: float, value: float) -> None:
        """Takes note of a reading; one that is not newer than the last replaces its value."""
        if self._seconds is not None and now_seconds > self._seconds:
            elapsed_seconds = now_seconds - self._seconds
            weight = -math.expm1(-elapsed_seconds / self._memory_seconds)
            change = value - self._value
            self._slope += weight * (change / elapsed_seconds - self._slope)
            self._falling_share += weight * ((change < 0.0) - self._falling_share)
        if self._seconds is None or now_seconds > self._seconds:
            self._seconds = now_seconds
        self._value = value

    @property
    def fall_per_second(self) -> float:
        """How much less it becomes in a second; 0 when it rises."""
        return max(0.0, -self._slope) * self._falling_share

    def seconds_until(self, value: float) -> float:
        """Time until the reading has fallen to `value` at this speed, at most FOREVER_SECONDS."""
        left = self._value - value
        if left <= 0.0:
            return 0.0
        fall = self.fall_per_second
        return FOREVER_SECONDS if fall * FOREVER_SECONDS <= left else left / fall


class LevelLatch:
    """Lets a level rise at once, and fall only when it has not been reached for some time."""

    __slots__ = ("_calm_seconds", "_reached_seconds")

    def __init__(self, calm_seconds: float) -> None:
        """`calm_seconds` after a level was last reached it is left."""
        if not calm_seconds >= 0.0:
            raise InvalidArgumentError("calm_seconds", calm_seconds, "at least 0")
        self._calm_seconds = calm_seconds
        self._reached_seconds: dict[PressureLevel, float] = {}

    def reach(self, now_seconds: float, level: PressureLevel) -> PressureLevel:
        """The level in force, when the newest reading is at `level`."""
        for reached in PressureLevel:
            if reached <= level:
                self._reached_seconds[reached] = now_seconds
        return max(
            reached
            for reached, seconds in self._reached_seconds.items()
            if reached <= level or now_seconds - seconds < self._calm_seconds
        )
