"""What the governor makes of single readings: levels, pace, admission, the size of the pool."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.engine.drought import Drought
from service.engine.figures import GovernorAction
from service.engine.governor import Governor, GovernorDecision
from service.engine.margins import margins
from service.engine.readings import GovernorReading

NORMAL, ELEVATED, HIGH, CRITICAL = PressureLevel
NARROW, CLOSE, SHRINK, GROW = GovernorAction


class Desk:
    """A governor of a device of 10 000 bytes: a full step takes 100, a narrow one 60, a block 10.

    At rest the pool has 500 blocks and 400 bytes are left.
    """

    def __init__(self) -> None:
        self.governor = Governor(elevated_share=0.75, high_share=0.9, step_tokens=512)
        self.now_seconds = 0.0
        self.decide()

    def decide(self, *, after: float = 0.1, **changes: Any) -> GovernorDecision:
        self.now_seconds += after
        usual = {
            "now_seconds": self.now_seconds,
            "pool_blocks": 500,
            "ceiling_blocks": 500,
            "running_blocks": 10,
            "live_blocks": 10,
            "held_blocks": 0,
            "block_bytes": 10,
            "kv_exhaustion_seconds": FOREVER_SECONDS,
            "running": 4,
            "preempted": 0,
            "device_total_bytes": 10_000,
            "headroom_bytes": 400,
            "demand_bytes": 100,
            "narrow_demand_bytes": 60,
        }
        return self.governor.decide(GovernorReading(**{**usual, **changes}))

    def settle(self, **changes: Any) -> GovernorDecision:
        """The decision after 20 seconds of the same."""
        decision = self.decide(**changes)
        for _ in range(200):
            decision = self.decide(**changes)
        return decision


def test_at_rest_nothing_is_done() -> None:
    decision = Desk().settle()
    assert decision == GovernorDecision(
        level=NORMAL,
        step_tokens=512,
        prefill_tokens=512,
        admits=True,
        pool_goal_blocks=500,
        kv_exhaustion_seconds=FOREVER_SECONDS,
        device_exhaustion_seconds=FOREVER_SECONDS,
    )


def test_it_looks_ten_times_a_second() -> None:
    desk = Desk()
    assert not desk.governor.is_due(desk.now_seconds + 0.09)
    assert desk.governor.is_due(desk.now_seconds + 0.1)
    assert Governor(0.75, 0.9, 512).is_due(0.0)


@pytest.mark.parametrize(
    ("held", "level"), [(374, NORMAL), (375, ELEVATED), (449, ELEVATED), (450, HIGH), (500, HIGH)]
)
def test_the_share_of_held_blocks(held: int, level: PressureLevel) -> None:
    assert Desk().decide(held_blocks=held).level is level


def test_held_blocks_are_left_a_tenth_below() -> None:
    desk = Desk()
    desk.decide(held_blocks=450)
    assert desk.settle(held_blocks=401).level is HIGH
    assert desk.settle(held_blocks=399).level is ELEVATED
    assert desk.settle(held_blocks=326).level is ELEVATED
    assert desk.settle(held_blocks=324).level is NORMAL


@pytest.mark.parametrize(
    ("seconds", "level"),
    [(30.0, NORMAL), (29.0, ELEVATED), (5.0, ELEVATED), (4.0, HIGH), (0, HIGH)],
)
def test_the_forecast_of_blocks(seconds: float, level: PressureLevel) -> None:
    decision = Desk().decide(kv_exhaustion_seconds=seconds)
    assert (decision.level, decision.kv_exhaustion_seconds) == (level, seconds)


def test_a_lack_of_blocks_is_no_reason_to_narrow_or_close() -> None:
    """Nothing fails for it, and what was preempted has to be computed again."""
    decision = Desk().settle(held_blocks=500, preempted=3, kv_exhaustion_seconds=0.0)
    assert decision.level is HIGH
    assert (decision.prefill_tokens, decision.admits, decision.actions) == (512, True, ())
    assert decision.pool_goal_blocks == 500


@pytest.mark.parametrize(
    ("headroom", "level", "prefill"),
    [
        (200, NORMAL, 512),
        (199, ELEVATED, 512),
        (125, ELEVATED, 512),
        (124, HIGH, 256),
        (60, HIGH, 256),
        (59, CRITICAL, 128),
        (0, CRITICAL, 128),
    ],
)
def test_headroom_against_demand(headroom: int, level: PressureLevel, prefill: int) -> None:
    # The rest is not missed: others give back as much as the pool has.
    desk = Desk()
    decision = desk.decide(
        headroom_bytes=headroom, pool_blocks=540 - headroom // 10, ceiling_blocks=500
    )
    assert (decision.level, decision.prefill_tokens) == (level, prefill)
    assert decision.admits == (level < CRITICAL)


def test_a_step_that_found_no_memory_is_critical_for_five_seconds() -> None:
    desk = Desk()
    failed = desk.now_seconds + 0.05
    decision = desk.decide(oom_seconds=failed)
    assert (decision.level, decision.actions) == (CRITICAL, (NARROW, CLOSE))
    assert desk.decide(after=4.9, oom_seconds=failed).level is CRITICAL
    assert desk.decide(after=0.2, oom_seconds=failed).level is NORMAL


def test_nobody_is_kept_out_while_nothing_runs() -> None:
    desk = Desk()
    assert not desk.decide(oom_seconds=desk.now_seconds).admits
    assert desk.decide(running=0).admits
    decision = desk.decide(running=1)
    assert (decision.admits, decision.actions) == (False, (CLOSE,))


def test_a_decline_is_told_in_seconds_and_answered_before_it_hurts() -> None:
    """100 bytes a second; a narrow step takes 60."""
    desk = Desk()
    decision = desk.decide()
    headroom = 400.0
    seen = []
    for _ in range(15):
        headroom -= 10.0
        decision = desk.decide(headroom_bytes=int(headroom))
        seen.append(decision.level)
    assert seen[0] is NORMAL
    assert seen[-1] is HIGH
    assert decision.device_exhaustion_seconds == pytest.approx((250 - 60) / 100, rel=0.4)
    assert decision.pool_goal_blocks < 500, "250 bytes are plenty, but not for long"
    assert decision.device_exhaustion_seconds >= (250 - 60) / 100


def test_a_decline_does_not_take_what_sequences_held_a_moment_ago() -> None:
    """The next ones want it; the neighbour takes 1500 bytes a second, 150 blocks."""

    def goal_after(desk: Desk, held: int) -> int:
        spare, goal = 6000, 500
        for _ in range(20):
            spare -= 150
            decision = desk.decide(
                pool_blocks=goal, headroom_bytes=spare - 10 * goal, held_blocks=held
            )
            goal = decision.pool_goal_blocks
        return goal

    lately, never = Desk(), Desk()
    lately.decide(held_blocks=200)
    assert goal_after(lately, held=0) > 150
    assert goal_after(never, held=0) < 50


def test_a_decline_of_plenty_is_no_pressure() -> None:
    desk = Desk()
    headroom = 6000
    for _ in range(20):
        headroom -= 100
        decision = desk.decide(headroom_bytes=headroom, device_total_bytes=12_000)
    assert decision.device_exhaustion_seconds < 10
    assert decision.level is NORMAL


def test_the_pool_gives_what_is_missing_and_holds() -> None:
    desk = Desk()
    decision = desk.decide(headroom_bytes=100, after=60.0)
    assert decision.pool_goal_blocks <= 495, "at least 150 bytes are left then"
    assert decision.actions == (NARROW, SHRINK)
    assert decision.level is HIGH
    goal = decision.pool_goal_blocks
    left = 100 + (500 - goal) * 10
    decision = desk.settle(pool_blocks=goal, headroom_bytes=left)
    assert decision.pool_goal_blocks in (goal, goal + (left - 160) // 10)
    assert decision.level is ELEVATED, "smaller than was ordered"


def test_the_pool_comes_back_step_by_step_when_it_has_arrived() -> None:
    desk = Desk()
    desk.governor.pool_gave(desk.now_seconds, 100)
    goals = [100]
    for _ in range(300):
        pool = goals[-1]
        decision = desk.decide(pool_blocks=pool, headroom_bytes=400 + (500 - pool) * 10)
        goals.append(decision.pool_goal_blocks)
    assert goals[1:19] == [100] * 18, "it holds for two seconds"
    assert sorted(goals) == goals
    assert goals[-1] == 500
    steps = {b - a for a, b in pairwise(goals) if a != b}
    assert max(steps) == 400 // 4
    assert desk.settle().level is NORMAL


def test_the_pool_does_not_go_on_growing_before_it_has_what_it_was_given() -> None:
    desk = Desk()
    desk.governor.pool_gave(desk.now_seconds, 100)
    decision = desk.settle(pool_blocks=100, headroom_bytes=4400)
    assert decision.pool_goal_blocks == 100 + 400 // 4


class TestRoomForTheLargest:
    """A pool that was made small must still fit whoever has to run."""

    def test_while_nothing_runs_the_largest_that_waits_gets_its_room(self) -> None:
        desk = Desk()
        desk.governor.pool_gave(desk.now_seconds, 100)
        decision = desk.decide(pool_blocks=100, headroom_bytes=120, running=0, live_blocks=140)
        assert decision.pool_goal_blocks == 140
        assert decision.actions == (NARROW, CLOSE, GROW)[::2]

    def test_one_that_runs_alone_keeps_its_room_and_that_of_others_comes_after(self) -> None:
        desk = Desk()
        desk.governor.pool_gave(desk.now_seconds, 100)
        lone = {"pool_blocks": 100, "headroom_bytes": 60, "running": 1}
        assert desk.decide(running_blocks=105, live_blocks=300, **lone).pool_goal_blocks == 105

    def test_several_make_room_as_long_as_a_narrow_step_finds_memory(self) -> None:
        desk = Desk()
        desk.governor.pool_gave(desk.now_seconds, 100)
        several = {"pool_blocks": 100, "headroom_bytes": 400, "running": 2}
        assert desk.decide(running_blocks=300, live_blocks=120, **several).pool_goal_blocks == 120
        assert desk.decide(running_blocks=300, live_blocks=300, **several).pool_goal_blocks == 133

    def test_the_level_is_that_of_the_headroom_which_is_left_then(self) -> None:
        desk = Desk()
        desk.governor.pool_gave(desk.now_seconds, 100)
        decision = desk.decide(pool_blocks=100, headroom_bytes=400, running=0, live_blocks=135)
        assert (decision.pool_goal_blocks, decision.level) == (135, CRITICAL)


def test_more_than_was_ordered_is_never_the_goal() -> None:
    desk = Desk()
    assert desk.decide(running=0, live_blocks=900).pool_goal_blocks == 500
    desk.governor.pool_gave(desk.now_seconds, 700)
    assert desk.decide().pool_goal_blocks == 500


@pytest.mark.parametrize("rest_ratio", [0.5, 1.0, 1.06, 1.3, 2.0, 3.0, 1000.0])
def test_margins_are_in_order_and_rest_is_above_all_of_them(rest_ratio: float) -> None:
    found = margins(rest_ratio)
    order = [
        1.0,
        found.shrink_below,
        found.high.leave,
        found.shrink_to,
        found.grow_above,
        found.elevated.enter,
        found.elevated.leave,
    ]
    assert order == sorted(set(order))
    assert found.high.enter == found.shrink_below
    assert found.elevated.leave <= max(rest_ratio, 1.05)


def test_margins_where_memory_is_plenty() -> None:
    found = margins(3.0)
    assert (found.elevated.enter, found.high.enter, found.shrink_to) == (2.0, 1.25, 1.5)


def test_a_drought_rests_between_tries_and_lasts_after_a_while() -> None:
    drought = Drought(wait_seconds=30.0)
    seen = []
    for failed, seconds in [(False, 5.0), (True, 10.0), (False, 10.9), (False, 11.0), (True, 39.5)]:
        drought.note_time(seconds)
        if failed:
            drought.note_failure(seconds)
        seen.append(drought.is_resting)
    assert seen == [False, True, True, False, True]
    assert not drought.is_lasting
    drought.note_time(40.0)
    lasts = drought.is_lasting
    drought.end()
    drought.note_time(100.0)
    assert (lasts, drought.is_resting, drought.is_lasting) == (True, False, False)


def seconds_to_growth(desk: Desk) -> float:
    """From a pool that had to give memory back to its first growth, with plenty of memory."""
    desk.governor.pool_gave(desk.now_seconds, 100)
    began_seconds = desk.now_seconds
    while desk.decide(pool_blocks=100, headroom_bytes=4400).pool_goal_blocks == 100:
        pass
    return desk.now_seconds - began_seconds


def test_growing_that_had_to_be_undone_is_tried_again_later_and_later() -> None:
    desk = Desk()
    waits = [seconds_to_growth(desk) for _ in range(8)]
    assert waits == pytest.approx([2, 4, 8, 16, 32, 60, 60, 60], abs=0.3)
    desk.now_seconds += 100.0
    assert seconds_to_growth(desk) == pytest.approx(2.0, abs=0.3), "it went well for a minute"


def test_room_made_for_the_largest_is_not_growing_that_went_wrong() -> None:
    desk = Desk()
    desk.governor.pool_gave(desk.now_seconds, 100)
    desk.decide(pool_blocks=100, headroom_bytes=4400, running=0, live_blocks=110)
    assert seconds_to_growth(desk) == pytest.approx(2.0, abs=0.3)
