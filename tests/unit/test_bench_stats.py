"""Figures of a benchmark against definitions written down a second time, the slow way."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.bench.record import Arrival, Outcome, RequestRecord
from service.bench.stats import (
    ServiceLevel,
    distribution,
    inter_token_seconds,
    tokens_over_time,
    tpot_seconds,
    ttft_seconds,
)
from service.bench.summary import summarize

ticks = st.integers(0, 10_000).map(lambda n: n / 64)  # exact in binary


@st.composite
def records(draw: st.DrawFn) -> RequestRecord:
    sent = draw(ticks)
    times = sorted(draw(st.lists(ticks, max_size=12)))
    arrivals = [Arrival(sent + t, draw(st.integers(1, 9))) for t in times]
    ended = (arrivals[-1].seconds if arrivals else sent) + draw(ticks)
    prompt = draw(st.integers(0, 100))
    return RequestRecord(
        number=0,
        sent_seconds=sent,
        ended_seconds=ended,
        outcome=draw(st.sampled_from(Outcome)),
        reason=draw(st.sampled_from(["QUEUE_FULL", "DRAINING"])),
        prompt_tokens=prompt,
        cached_prompt_tokens=draw(st.integers(0, prompt)),
        arrivals=arrivals,
    )


def naive_percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60))
def test_percentiles_interpolate_linearly(values: list[float]) -> None:
    figures = distribution(values)
    assert figures is not None
    assert figures.count == len(values)
    assert figures.p50 == pytest.approx(naive_percentile(values, 50))
    assert figures.p90 == pytest.approx(naive_percentile(values, 90))
    assert figures.p99 == pytest.approx(naive_percentile(values, 99))
    assert figures.mean == pytest.approx(statistics.fmean(values))
    assert figures.maximum == max(values)


def test_no_values_have_no_distribution() -> None:
    assert distribution([]) is None


@given(records())
def test_gaps_are_per_token_and_add_up_to_the_decode_time(record: RequestRecord) -> None:
    naive = []
    for before, after in itertools.pairwise(record.arrivals):
        naive += [(after.seconds - before.seconds) / after.tokens] * after.tokens
    gaps = inter_token_seconds(record)
    assert gaps.tolist() == pytest.approx(naive)
    if record.arrivals:
        decode = record.arrivals[-1].seconds - record.arrivals[0].seconds
        assert gaps.sum() == pytest.approx(decode)
        assert len(gaps) == record.output_tokens - record.arrivals[0].tokens
        assert ttft_seconds(record) == record.arrivals[0].seconds - record.sent_seconds
    else:
        assert ttft_seconds(record) is None
    assert (tpot_seconds(record) is None) == (len(record.arrivals) < 2)


def test_merged_messages_do_not_change_the_mean_gap() -> None:
    one_by_one = RequestRecord(0, 0.0, arrivals=[Arrival(float(i), 1) for i in range(1, 9)])
    merged = RequestRecord(0, 0.0, arrivals=[Arrival(1.0, 1), Arrival(4.0, 3), Arrival(8.0, 4)])
    assert tpot_seconds(one_by_one) == tpot_seconds(merged) == 1.0


@given(st.lists(records(), max_size=8), st.integers(1, 20))
def test_no_token_falls_out_of_the_timeline(run: list[RequestRecord], bins: int) -> None:
    end = max((record.ended_seconds for record in run), default=0.0) or 1.0
    counts = tokens_over_time(run, end, bins)
    assert len(counts) == bins
    assert counts.sum() == sum(record.output_tokens for record in run)


def test_the_timeline_knows_when() -> None:
    record = RequestRecord(0, 0.0, arrivals=[Arrival(0.5, 2), Arrival(9.9, 3), Arrival(10.0, 4)])
    assert tokens_over_time([record], 10.0, 5).tolist() == [2, 0, 0, 0, 7]


@given(st.lists(records(), max_size=8), ticks, ticks)
def test_the_summary_counts_every_request_once(
    run: list[RequestRecord], ttft_limit: float, tpot_limit: float
) -> None:
    level = ServiceLevel(ttft_limit, tpot_limit)
    summary = summarize(run, 100.0, level)
    assert sum(summary.outcomes.values()) == summary.requests == len(run)
    unlucky = summary.outcomes[Outcome.REFUSED] + summary.outcomes[Outcome.FAILED]
    assert sum(summary.reasons.values()) == unlucky
    ok = [record for record in run if record.outcome is Outcome.OK]
    assert summary.requests_per_second == len(ok) / 100
    assert (summary.e2e.count if summary.e2e else 0) == len(ok)
    assert summary.output_tokens_per_second * 100 == pytest.approx(
        sum(record.output_tokens for record in run)
    )
    good = 0
    for record in ok:
        first, pace = ttft_seconds(record), tpot_seconds(record)
        good += (first or 0.0) <= ttft_limit and (pace or 0.0) <= tpot_limit
    assert summary.goodput is not None
    assert summary.goodput.requests == good
    ended = len(run) - summary.outcomes[Outcome.CANCELLED]
    assert summary.goodput.share == (good / ended if ended else 0.0)


def test_hit_rate_is_cached_over_prompt_tokens() -> None:
    run = [
        RequestRecord(0, 0.0, 1.0, Outcome.OK, "eos", prompt_tokens=100, cached_prompt_tokens=48),
        RequestRecord(1, 0.0, 1.0, Outcome.OK, "eos", prompt_tokens=60, cached_prompt_tokens=0),
    ]
    assert summarize(run, 1.0).prefix_hit_rate == 0.3
    assert summarize([], 1.0).prefix_hit_rate is None
    assert summarize([], 1.0).goodput is None
