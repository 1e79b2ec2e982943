"""Seconds and ticks: the clock behind retention, and the histograms that it dates."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvcache.histograms import BOUNDS_SECONDS, SampledTimes
from kvcache.ticks import NO_TICK, TickClock


def test_a_tick_is_not_said_to_have_passed_before_it_had() -> None:
    clock = TickClock()
    for seconds, tick in ((10.0, 1), (10.4, 2), (10.9, 5), (30.0, 6)):
        clock.note(seconds, tick)
    assert [clock.tick_at(seconds) for seconds in (9.9, 10.5, 10.9, 29.9, 30.0)] == [
        NO_TICK,
        NO_TICK,
        5,
        5,
        6,
    ]
    assert clock.seconds_at(np.array([5, 6])).tolist() == [10.9, 30.0]


@given(st.lists(st.floats(0, 5), max_size=200), st.integers(2, 8))
def test_the_clock_never_errs_towards_too_old(pauses: list[float], recent: int) -> None:
    clock, now, passed = TickClock(recent), 0.0, {}
    for tick, pause in enumerate(pauses):
        now += pause
        clock.note(now, tick)
        passed[tick] = now
    for tick, seconds in passed.items():
        found = clock.tick_at(seconds)
        assert found == NO_TICK or passed[found] <= seconds
        assert found <= max(t for t, s in passed.items() if s <= seconds)
        assert tick >= 0


def test_the_memory_of_the_clock_is_bounded_and_sharp_for_the_recent_past() -> None:
    clock = TickClock(recent=16)
    for second in range(10_000):
        clock.note(float(second), second)
    assert len(clock._ticks) < 32 * 2
    assert [clock.tick_at(9_999.0 - age) for age in range(16)] == [9_999 - a for a in range(16)]
    assert clock.tick_at(5_000.0) <= 5_000
    assert clock._seconds == sorted(clock._seconds)


# --- histograms ---


def test_samples_fall_into_the_bucket_of_their_seconds() -> None:
    clock = TickClock()
    for seconds in range(0, 1001, 10):
        clock.note(float(seconds), seconds // 10)
    times = SampledTimes()
    times.add([(0, 0, 90, 99), (0, 98, 99, 99), (1, 50, 0, 51)], clock, 100, 1000.0)
    times.add([(1, 100, 0, 100)], clock, 100, 1030.0)
    found = times.histograms()
    assert found.lifetime_seconds.sum_seconds == 990 + 10
    assert found.lifetime_seconds.counts[BOUNDS_SECONDS.index(1000)] == 1
    assert found.lifetime_seconds.counts[BOUNDS_SECONDS.index(10)] == 1
    assert found.idle_before_evict_seconds.sum_seconds == 90
    assert found.idle_before_evict_seconds.counts[0] == 1
    assert found.reuse_gap_seconds.counts[BOUNDS_SECONDS.index(10)] == 1
    assert found.reuse_gap_seconds.counts[BOUNDS_SECONDS.index(30)] == 1, "no tick since then"
    assert sum(found.reuse_gap_seconds.counts) == 2


def test_what_is_longer_than_every_bound_is_counted_too() -> None:
    clock = TickClock()
    clock.note(0.0, 0)
    clock.note(1e6, 1)
    times = SampledTimes()
    times.add([(1, 0, 0, 1)], clock, 2, 2e6)
    assert times.histograms().reuse_gap_seconds.counts[-1] == 1
