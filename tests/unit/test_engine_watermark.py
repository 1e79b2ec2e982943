"""The least and the largest value of a window, against a window that keeps all."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.engine.watermark import HighWatermark, LowWatermark

WINDOW_SECONDS = 5.0
STEPS = st.lists(st.tuples(st.integers(0, 7), st.integers(-3, 20)), min_size=1, max_size=60)


@given(STEPS)
def test_no_value_of_the_window_is_missed_and_none_before_it_counts(
    steps: list[tuple[int, int]],
) -> None:
    low, high = LowWatermark(WINDOW_SECONDS), HighWatermark(WINDOW_SECONDS)
    seen: list[tuple[float, int]] = []
    now_seconds = 100.0
    for pause_seconds, value in steps:
        now_seconds += pause_seconds
        seen.append((now_seconds, value))
        window = [v for then, v in seen if then >= now_seconds - WINDOW_SECONDS]
        assert low.add(now_seconds, value) == min(window)
        assert high.add(now_seconds, value) == max(window)


def test_a_dip_between_two_scrapes_is_seen_for_a_whole_window_and_no_longer() -> None:
    low = LowWatermark(60.0)
    lows = [low.add(tick / 10, 7 if tick == 50 else 100) for tick in range(1000)]
    assert [tick for tick, value in enumerate(lows) if value == 7] == list(range(50, 651))
