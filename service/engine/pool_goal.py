"""How large the KV pool should be, so that the steps of the model find memory.

Memory that the pool and the steps share is *spare*: the headroom plus the pool. Resizing the
pool does not change it, so what it does tells what others do. The pool shrinks as soon as the
headroom gets short, far enough that it does not do so again at once, and grows back slowly.
"""

from __future__ import annotations

import math

from service.engine.figures import GovernorAction
from service.engine.margins import Margins
from service.engine.readings import GovernorReading

# For so long the headroom is to last when spare memory declines. What nobody holds is given back
# early. What sequences hold is worth more: it goes when there is just time left to give it back,
# which takes a look and a step or two. The same is true of what they held a moment ago: the next
# one wants it when one has ended, and a pool without it would admit nobody.
_AHEAD_SECONDS = 2.0
_NEAR_SECONDS = 0.5
_NEAR_LOOKS = 2
_GROWTH_BLOCKS = 2
_NEED_SECONDS = 10.0  # by which what was needed is forgotten, but for 1/e
# The pool grows by a part of what is missing, and at least by a part of the ceiling, at a time.
_GROWTH_PART_OF_GAP = 4
_GROWTH_PART_OF_CEILING = 32
_GROWTH_SECONDS = 0.5  # between two times
_HOLD_SECONDS = 2.0  # from a shrink to the first growth; doubled by each shrink after a growth
_HOLD_MAX_SECONDS = 60.0
_NARROW_RATIO = 1.1  # of headroom to the demand of a narrow step, when room is made in need


class PoolGoal:
    """The size that the pool is to have; None in `_goal_blocks`: whatever was ordered."""

    def __init__(self) -> None:
        self._goal_blocks: int | None = None
        self._shrunk_seconds = -math.inf
        self._grew_seconds = -math.inf
        self._looked_seconds = math.inf
        self._hold_seconds = _HOLD_SECONDS
        self._needed_blocks = 0.0

    def next(
        self, reading: GovernorReading, margins: Margins, decline_bytes_per_second: float
    ) -> tuple[int, GovernorAction | None]:
        """The goal after `reading`, and what that asks of the pool, if anything.

        `decline_bytes_per_second` is that of the spare memory.
        """
        interval_seconds = self._interval(reading)
        near_seconds = min(_AHEAD_SECONDS, max(_NEAR_SECONDS, _NEAR_LOOKS * interval_seconds))
        needed_blocks = self._need(reading, interval_seconds)

        def blocks_that_leave(ratio: float) -> int:
            kept_bytes = ratio * reading.demand_bytes
            early = kept_bytes + decline_bytes_per_second * _AHEAD_SECONDS
            late = kept_bytes + decline_bytes_per_second * near_seconds
            held = min(needed_blocks, _blocks_that_leave(reading, late))
            return max(held, _blocks_that_leave(reading, early))

        ceiling = reading.ceiling_blocks
        before = ceiling if self._goal_blocks is None else min(self._goal_blocks, ceiling)
        wanted = before
        if before > blocks_that_leave(margins.shrink_below):
            wanted = min(before, blocks_that_leave(margins.shrink_to))
        elif self._may_grow(reading, before):
            gap = ceiling - before
            step = max(1, gap // _GROWTH_PART_OF_GAP, ceiling // _GROWTH_PART_OF_CEILING)
            room = blocks_that_leave(margins.grow_above)
            wanted = max(before, min(before + step, ceiling, room))
        after = min(ceiling, max(wanted, _least_blocks(reading)))
        self._goal_blocks = None if after == ceiling else after
        if after < before:
            self._note_shrink(reading.now_seconds)
            return after, GovernorAction.SHRINK
        if wanted > before:
            self._grew_seconds = reading.now_seconds
        if after > before:
            return after, GovernorAction.GROW
        return after, None

    def lower(self, now_seconds: float, goal_blocks: int) -> None:
        """The pool had to give memory back; it is not to take it again at once."""
        if self._goal_blocks is None or goal_blocks < self._goal_blocks:
            self._goal_blocks = max(0, goal_blocks)
        self._note_shrink(now_seconds)

    def _interval(self, reading: GovernorReading) -> float:
        """Time since the last reading."""
        before, self._looked_seconds = self._looked_seconds, reading.now_seconds
        return max(0.0, reading.now_seconds - before)

    def _need(self, reading: GovernorReading, interval_seconds: float) -> int:
        """Blocks that sequences hold, or did lately, and what they grow by until the pool may."""
        faded_blocks = self._needed_blocks * math.exp(-interval_seconds / _NEED_SECONDS)
        self._needed_blocks = max(
            faded_blocks, reading.held_blocks + _GROWTH_BLOCKS * reading.running
        )
        return math.ceil(self._needed_blocks)

    def _may_grow(self, reading: GovernorReading, goal_blocks: int) -> bool:
        """Whether the pool has arrived where it was to be, and nothing has happened for a while."""
        now_seconds = reading.now_seconds
        if now_seconds - self._shrunk_seconds < self._hold_seconds:
            return False
        if now_seconds - self._grew_seconds < _GROWTH_SECONDS:
            return False
        return reading.pool_blocks >= goal_blocks

    def _note_shrink(self, now_seconds: float) -> None:
        """Growing that had to be undone is tried again later and later."""
        if self._grew_seconds > self._shrunk_seconds:
            quiet_seconds = now_seconds - self._grew_seconds
            again = quiet_seconds < _HOLD_MAX_SECONDS
            doubled = min(_HOLD_MAX_SECONDS, 2 * self._hold_seconds)
            self._hold_seconds = doubled if again else _HOLD_SECONDS
        self._shrunk_seconds = now_seconds


def _blocks_that_leave(reading: GovernorReading, kept_bytes: float) -> int:
    return max(0, math.floor((reading.spare_bytes - kept_bytes) / reading.block_bytes))


def _least_blocks(reading: GovernorReading) -> int:
    """Room for the largest live sequence, so that each has its turn.

    While several run, only as far as a narrow step still finds memory. One that runs alone, or
    is to be the next, has no other way to go on.
    """
    if not reading.running:
        return reading.live_blocks
    room = _blocks_that_leave(reading, _NARROW_RATIO * reading.narrow_demand_bytes)
    alone_blocks = reading.running_blocks if reading.running == 1 else 0
    return max(alone_blocks, min(reading.live_blocks, room))
