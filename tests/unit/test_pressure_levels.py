"""Thresholds with hysteresis, levels that hold for a while, and trends."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache import FOREVER_SECONDS, LevelLatch, PressureLevel, Threshold, Trend
from kvcache.errors import InvalidArgumentError
from kvcache.pressure import clamp_seconds

NORMAL, ELEVATED, HIGH, CRITICAL = PressureLevel


def test_a_threshold_for_what_is_bad_when_it_is_high() -> None:
    held = Threshold(enter=0.9, leave=0.8)
    assert not held.holds(0.89, entered=False)
    assert held.holds(0.9, entered=False)
    assert held.holds(0.8, entered=True)
    assert not held.holds(0.79, entered=True)


def test_a_threshold_for_what_is_bad_when_it_is_low() -> None:
    left = Threshold(enter=1.25, leave=1.4)
    assert not left.holds(1.25, entered=False)
    assert left.holds(1.24, entered=False)
    assert left.holds(1.39, entered=True)
    assert not left.holds(1.4, entered=True)


def test_a_level_rises_at_once_and_falls_when_it_was_not_reached_for_a_while() -> None:
    latch = LevelLatch(calm_seconds=5.0)
    readings = [(0, NORMAL), (1, HIGH), (2, ELEVATED), (5.9, NORMAL), (6, NORMAL), (7, NORMAL)]
    levels = [latch.reach(float(seconds), level) for seconds, level in readings]
    assert levels == [NORMAL, HIGH, HIGH, HIGH, ELEVATED, NORMAL]
    assert latch.reach(8.0, CRITICAL) is CRITICAL
    assert latch.reach(13.0, NORMAL) is NORMAL


def test_calm_seconds_are_a_time() -> None:
    with pytest.raises(InvalidArgumentError, match=r"calm_seconds is -1\.0"):
        LevelLatch(-1.0)
    with pytest.raises(InvalidArgumentError, match="calm_seconds is nan"):
        LevelLatch(math.nan)
    assert LevelLatch(0.0).reach(1.0, HIGH) is HIGH


@given(st.lists(st.tuples(st.floats(0.0, 3.0), st.sampled_from(PressureLevel)), min_size=1))
def test_a_latch_is_the_highest_level_of_the_last_seconds(
    steps: list[tuple[float, PressureLevel]],
) -> None:
    latch = LevelLatch(calm_seconds=5.0)
    now, seen = 0.0, []
    for elapsed, level in steps:
        now += elapsed
        seen.append((now, level))
        recent = [reached for seconds, reached in seen if now - seconds < 5.0]
        assert latch.reach(now, level) is max(recent)


# --- trends --------------------------------------------------------------------


def fed(readings: list[tuple[float, float]], memory_seconds: float = 0.7) -> Trend:
    trend = Trend(memory_seconds)
    for seconds, value in readings:
        trend.add(seconds, value)
    return trend


@pytest.mark.parametrize("interval", [0.1, 0.25, 1.0])
def test_the_end_of_what_falls_evenly_is_told_however_often_one_looks(interval: float) -> None:
    looks = [i * interval for i in range(int(10 / interval))]
    trend = fed([(seconds, 1000.0 - 20.0 * seconds) for seconds in looks])
    now = 1000.0 - 20.0 * looks[-1]
    assert trend.fall_per_second == pytest.approx(20.0, rel=0.01)
    assert trend.seconds_until(100.0) == pytest.approx((now - 100.0) / 20.0, rel=0.01)
    assert trend.seconds_until(now) == trend.seconds_until(now + 5.0) == 0.0


def test_one_look_earlier_does_not_change_what_was_seen_before() -> None:
    """Half the looks, the same slope: after equal times both know as much of it."""
    often = fed([(i / 10, 1000.0 - i) for i in range(11)])
    seldom = fed([(i / 5, 1000.0 - 2 * i) for i in range(6)])
    assert often.fall_per_second == pytest.approx(seldom.fall_per_second)
    assert 0.4 * 10 < often.fall_per_second < 10


def test_what_rises_or_stays_has_no_end() -> None:
    assert fed([]).seconds_until(-1.0) == FOREVER_SECONDS
    assert fed([(0.0, 5.0)]).seconds_until(0.0) == FOREVER_SECONDS
    assert fed([(float(i), 5.0) for i in range(9)]).seconds_until(0.0) == FOREVER_SECONDS
    rising = fed([(float(i), 5.0 + i) for i in range(9)])
    assert (rising.fall_per_second, rising.seconds_until(0.0)) == (0.0, FOREVER_SECONDS)


def test_a_fall_that_came_at_once_is_no_trend() -> None:
    steps = fed([(i / 10, 1000.0 - 300.0 * (i >= 20)) for i in range(21)])
    slide = fed([(i / 10, 1000.0 - 15.0 * i) for i in range(21)])
    assert steps.fall_per_second < slide.fall_per_second / 2
    later = fed([(i / 10, 1000.0 - 300.0 * (i >= 20)) for i in range(41)])
    assert later.fall_per_second < steps.fall_per_second / 10


def test_a_reading_of_the_same_moment_replaces_the_last() -> None:
    trend = fed([(0.0, 10.0), (1.0, 10.0), (1.0, 4.0), (0.5, 3.0)])
    assert trend.fall_per_second == 0.0
    trend.add(2.0, 2.0)
    assert 0.0 < trend.fall_per_second <= 1.0


@pytest.mark.parametrize("memory_seconds", [0.0, -1.0, math.inf, math.nan])
def test_the_memory_of_a_trend_is_a_time(memory_seconds: float) -> None:
    with pytest.raises(InvalidArgumentError, match="memory_seconds is"):
        Trend(memory_seconds)


@given(
    st.lists(st.tuples(st.floats(-1.0, 10.0), st.floats(-1e15, 1e15)), max_size=20),
    st.floats(-1e15, 1e15),
)
def test_an_end_is_a_time(readings: list[tuple[float, float]], value: float) -> None:
    now, looks = 0.0, []
    for elapsed, reading in readings:
        now += elapsed
        looks.append((now, reading))
    trend = fed(looks)
    assert trend.fall_per_second >= 0.0
    assert 0.0 <= trend.seconds_until(value) <= FOREVER_SECONDS


def test_clamped_seconds() -> None:
    assert clamp_seconds(math.nan) == clamp_seconds(math.inf) == FOREVER_SECONDS
    assert clamp_seconds(-math.inf) == clamp_seconds(-1.0) == 0.0
    assert clamp_seconds(12.5) == 12.5
