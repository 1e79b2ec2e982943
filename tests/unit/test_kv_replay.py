"""Replaying traces through the real manager: every figure against one made by hand."""

from __future__ import annotations

import doctest
import itertools
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvcache.replay
from kvcache import CacheManager
from kvcache.errors import InvalidArgumentError
from kvcache.replay import (
    ReplayReport,
    ReplaySettings,
    ReplaySimulator,
    TraceRequest,
    insert_in_order,
    read_trace,
    replay,
)

TRACES = Path(__file__).parents[1] / "traces"
# 10 tokens a second of prefill and 1 second a step: times are whole numbers.
SLOW = ReplaySettings(
    num_blocks=100,
    block_tokens=4,
    trace_block_tokens=4,
    max_running_sequences=8,
    max_step_tokens=100,
    prefill_tokens_per_second=10.0,
    decode_step_seconds=1.0,
    load_line=1.0,
)


def in_order(requests: list[TraceRequest], num_blocks: int, block_tokens: int = 4) -> float:
    manager = CacheManager(num_blocks + 1, block_tokens)
    return insert_in_order(requests, manager, trace_block_tokens=4).hit_ratio


def prompts(*ids: tuple[int, ...]) -> list[TraceRequest]:
    return [TraceRequest(0.0, 4 * len(one), 1, one) for one in ids]


# --- in order ------------------------------------------------------------------


def test_hits_in_order_are_leading_equal_ids() -> None:
    assert in_order(prompts((1, 2, 3), (1, 2, 4), (5, 2, 3)), 100) == pytest.approx(2 / 9)


def test_the_last_token_of_a_prompt_is_never_a_hit() -> None:
    assert in_order(prompts((1, 2, 3), (1, 2, 3)), 100) == pytest.approx(2 / 6)


def test_a_prompt_that_ends_inside_a_block_counts_whole() -> None:
    requests = [TraceRequest(0.0, 9, 1, (1, 2, 3)), TraceRequest(0.0, 13, 1, (1, 2, 3, 4))]
    assert in_order(requests, 100) == pytest.approx(3 / 7)


def test_in_order_evicts_the_least_recently_used() -> None:
    rounds = prompts((1, 2), (3, 4), (5, 6), (1, 2, 7))
    assert in_order(rounds, 4) == 0.0
    assert in_order(rounds, 5) == pytest.approx(1 / 9)  # block 2 made room for 6
    assert in_order(rounds, 9) == pytest.approx(2 / 9)


def test_smaller_blocks_find_the_same() -> None:
    requests = prompts((1, 2, 3), (1, 2, 4))
    assert in_order(requests, 100, block_tokens=2) == in_order(requests, 100, block_tokens=4)


def test_what_no_id_names_is_shared_with_nobody() -> None:
    same = TraceRequest(0.0, 40, 1)
    assert in_order([same, same], 100) == 0.0
    longer = TraceRequest(0.0, 40, 1, (1, 2))  # 8 tokens named, 32 of its own
    assert in_order([longer, longer], 100) == pytest.approx(8 / 80)


def test_a_prompt_larger_than_the_pool_is_a_miss() -> None:
    assert in_order(prompts((1, 2), (1, 2, 3, 4), (1, 2, 5)), 3) == pytest.approx(2 / 9)


def test_ids_of_any_size_are_told_apart() -> None:
    assert in_order(prompts((2**70, 1), (2**70, 2), (2**70 + 2**32, 1)), 100) == 1 / 6


# --- in time -------------------------------------------------------------------


def test_times_of_one_request() -> None:
    report = replay([TraceRequest(3.0, 20, 3)], SLOW)
    # Prefill: 1 s + 20 / 10 tokens/s, which gives the first token; two decode steps.
    assert report.ttft_seconds.maximum == 3.0
    assert report.duration_seconds == 5.0
    assert report.queue_seconds.maximum == 0.0
    assert (report.requests.finished, report.requests.output_tokens) == (1, 3)
    assert report.requests.prompt_tokens == 20


def test_a_long_prompt_takes_several_steps() -> None:
    report = replay([TraceRequest(0.0, 250, 1)], SLOW)
    assert report.duration_seconds == 3 * 1.0 + 250 / 10


def test_decodes_leave_less_of_the_step_to_prefill() -> None:
    two = [TraceRequest(0.0, 8, 50), TraceRequest(1.8, 199, 1)]
    report = replay(two, SLOW)
    # 1.8 s: the first has its first token. The second: 99 + 99 tokens beside a decode, then 1.
    assert report.ttft_seconds.maximum == pytest.approx(3 * 1.0 + 199 / 10)


def test_a_request_waits_for_a_place_in_the_batch() -> None:
    one_by_one = replace(SLOW, max_running_sequences=1)
    report = replay([TraceRequest(0.0, 10, 2), TraceRequest(0.0, 10, 2)], one_by_one)
    # 2 s prefill, 1 s decode, then the other.
    assert report.queue_seconds.maximum == 3.0
    assert report.longest_queue == 2
    assert report.duration_seconds == 6.0


def test_speed_brings_requests_closer() -> None:
    two = [TraceRequest(0.0, 10, 1), TraceRequest(100.0, 10, 1)]
    assert replay(two, SLOW).duration_seconds == 102.0
    assert replay(two, replace(SLOW, speed=4.0)).duration_seconds == 27.0


def test_waste_is_the_unused_share_of_held_slots_over_time() -> None:
    # 6 tokens in two blocks of 4 for 1.6 s, then 7 for 1 s: 2, then 1 of 8 slots unused.
    report = replay([TraceRequest(0.0, 6, 2)], SLOW)
    assert report.waste == pytest.approx((1.6 * 2 + 1.0 * 1) / (2.6 * 8))


def test_time_at_the_load_line() -> None:
    # 8 of 10 blocks; the ninth comes with the second decode step.
    settings_ = replace(SLOW, num_blocks=10, load_line=0.9)
    report = replay([TraceRequest(0.0, 31, 4)], settings_)
    assert report.duration_seconds == pytest.approx(4.1 + 3)
    assert report.load_line_seconds == 2.0
    assert report.load_line_share == pytest.approx(2.0 / 7.1)


def test_above_the_load_line_nothing_is_admitted() -> None:
    two = [TraceRequest(0.0, 16, 3), TraceRequest(0.0, 16, 3)]
    assert replay(two, replace(SLOW, num_blocks=10)).queue_seconds.maximum == 0.0
    lower = replay(two, replace(SLOW, num_blocks=10, load_line=0.7))
    assert lower.queue_seconds.maximum == pytest.approx(1 + 1.6 + 2)


def test_growth_beyond_the_pool_preempts_and_computes_again() -> None:
    two = [TraceRequest(0.0, 12, 12), TraceRequest(0.0, 12, 12)]
    report = replay(two, replace(SLOW, num_blocks=8))
    # 3 + 3 blocks, and 4 + 4 while both decode to 16 tokens. The 17th does not fit: the
    # second, which costs as much but came last, goes and comes back when the first is done.
    requests = report.requests
    assert (requests.finished, requests.output_tokens) == (2, 24)
    assert requests.preemptions == 1
    # It had 16 tokens computed; the first grew into two of its four blocks.
    assert requests.recomputed_tokens == 8
    # What it found again is no hit, and its prompt is one prompt.
    assert (report.cache.hit_tokens, report.cache.lookup_tokens) == (0, 24)
    assert requests.prompt_tokens == 24


def test_nobody_passes_a_preempted_request() -> None:
    two = [TraceRequest(0.0, 12, 12), TraceRequest(0.0, 12, 12)]
    third = TraceRequest(1.0, 12, 1)  # would fit when the second has lost its blocks
    report = replay([*two, third], replace(SLOW, num_blocks=8))
    assert report.requests.preemptions == 1
    # It starts with the second, when the first is done: 3.4 s of prefill, 11 decode steps.
    assert report.queue_seconds.maximum == pytest.approx(3.4 + 11 - 1.0)


class PreemptionWatch(CacheManager):
    """Refuses to preempt a sequence that got no further since the last time."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        super().__init__(num_blocks, block_tokens)
        self.tokens: dict[int, int] = {}

    def preempt(self, sequence_id: int, **how: Any) -> None:
        tokens = self.computed_tokens(sequence_id)
        assert tokens > self.tokens.get(sequence_id, 0)
        self.tokens[sequence_id] = tokens
        super().preempt(sequence_id, **how)


def test_nobody_is_preempted_twice_without_a_token_in_between() -> None:
    sizes = [(1.0, 4, 9), (2.0, 2, 17), (6.0, 5, 7), (7.0, 1, 6), (8.0, 5, 14), (10.0, 2, 4)]
    requests = [TraceRequest(*size) for size in sizes]
    tight = replace(SLOW, num_blocks=13, block_tokens=2, max_running_sequences=5, max_step_tokens=9)
    manager = PreemptionWatch(14, 2)
    simulator = ReplaySimulator(requests, tight, manager)
    while simulator.has_work:
        simulator.step()
    assert simulator.report().requests.preemptions == 3


def test_what_can_never_fit_is_refused_and_what_outgrows_the_pool_ends() -> None:
    requests = [TraceRequest(0.0, 33, 1), TraceRequest(0.0, 30, 10), TraceRequest(0.0, 8, 2)]
    report = replay(requests, replace(SLOW, num_blocks=8))
    assert report.requests.refused == 1
    assert report.requests.outgrown == 1
    assert report.requests.finished == 1
    assert report.requests.output_tokens == 3 + 2


def test_a_request_without_output_only_fills_the_cache() -> None:
    report = replay([TraceRequest(0.0, 8, 0, (1, 2)), TraceRequest(9.0, 12, 1, (1, 2, 3))], SLOW)
    assert report.requests.finished == 2
    assert report.requests.output_tokens == 1
    assert report.cache.hit_tokens == 8


def test_the_full_blocks_of_a_prompt_are_there_when_it_is_computed() -> None:
    ids = (1, 2, 3)
    report = replay([TraceRequest(0.0, 10, 9, ids), TraceRequest(3.0, 10, 1, ids)], SLOW)
    assert report.cache.hit_tokens == 8
    assert report.queue_seconds.maximum == 0.0


def test_a_prefix_in_the_making_is_waited_for() -> None:
    ids = tuple(range(10))
    # 40 tokens at 10 a step: the second could start at once, and would compute all of it.
    step = replace(SLOW, max_step_tokens=10)
    report = replay([TraceRequest(0.0, 40, 1, ids), TraceRequest(0.0, 44, 1, (*ids, 99))], step)
    assert report.cache.hit_tokens == 40
    assert report.cache.deduplicated_blocks == 0
    passing = replay(
        [
            TraceRequest(0.0, 40, 1, ids),
            TraceRequest(0.0, 44, 1, (*ids, 99)),
            TraceRequest(0.0, 5, 1),
        ],
        replace(SLOW, max_step_tokens=50),
    )
    # The third passes the second, which waits for the first: one step of 45 tokens.
    assert passing.ttft_seconds.p50 == pytest.approx(1 + 4.5)


def test_requests_are_played_by_time_not_by_line() -> None:
    requests = read_trace(TRACES / "sessions.jsonl")
    played = ReplaySettings(num_blocks=40, block_tokens=512, prefill_tokens_per_second=2000.0)
    assert replay(requests, played) == replay(requests[::-1], played)


def test_concurrency_and_partial_blocks_explain_the_difference_to_in_order() -> None:
    """With one request at a time and room for all, time changes nothing about the hits."""
    requests = [
        replace(request, prompt_tokens=512 * len(request.hash_ids), output_tokens=0)
        for request in read_trace(TRACES / "sessions.jsonl")
    ]
    single = ReplaySettings(num_blocks=1000, block_tokens=512, max_running_sequences=1)
    manager = CacheManager(1001, 512)
    assert replay(requests, single).cache == insert_in_order(requests, manager, 512)


def test_a_long_timeline_is_thinned_evenly() -> None:
    report = replay([TraceRequest(0.0, 4, 10_000)], replace(SLOW, num_blocks=3000))
    seconds = [sample.seconds for sample in report.timeline]
    gaps = {round(after - before, 6) for before, after in itertools.pairwise(seconds[1:])}
    assert 2048 <= len(seconds) < 4096
    assert gaps == {4.0}


requests_of_any_kind = st.builds(
    TraceRequest,
    st.integers(0, 40).map(float),
    st.integers(1, 60),
    st.integers(0, 20),
    st.lists(st.integers(0, 3), max_size=8).map(tuple),
)


@settings(deadline=None)
@given(
    st.lists(requests_of_any_kind, max_size=14),
    st.integers(2, 40),
    st.integers(1, 9),
    st.integers(1, 6),
    st.sampled_from([0.5, 0.9, 1.0]),
)
def test_every_request_ends_and_every_block_comes_back(
    requests: list[TraceRequest],
    num_blocks: int,
    block_tokens: int,
    max_running: int,
    load_line: float,
) -> None:
    played = replace(
        SLOW,
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        max_running_sequences=max_running,
        max_step_tokens=max_running + 7,
        load_line=load_line,
    )
    manager = CacheManager(num_blocks + 1, block_tokens)
    simulator = ReplaySimulator(requests, played, manager)
    steps = 0
    while simulator.has_work:
        simulator.step()
        steps += 1
        assert steps < 10_000
    manager.audit()
    assert manager.stats().held == 0
    report = simulator.report()
    _check_books(report, requests, num_blocks * block_tokens)


def _check_books(report: ReplayReport, requests: list[TraceRequest], slots: int) -> None:
    figures = report.requests
    assert figures.finished + figures.refused + figures.outgrown == len(requests)
    assert figures.refused == sum(request.prompt_tokens > slots for request in requests)
    too_long = sum(
        request.prompt_tokens <= slots < request.prompt_tokens + request.output_tokens - 1
        for request in requests
    )
    assert figures.outgrown == too_long
    wanted = sum(
        min(request.output_tokens, slots - request.prompt_tokens + 1)
        for request in requests
        if request.prompt_tokens <= slots
    )
    assert figures.output_tokens == wanted
    assert 0.0 <= report.waste < 1.0
    assert report.load_line_seconds <= report.duration_seconds
    if figures.preemptions == 0:
        assert figures.recomputed_tokens == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_blocks", 0),
        ("block_tokens", 0),
        ("trace_block_tokens", 0),
        ("max_running_sequences", 0),
        ("max_step_tokens", 8),
        ("prefill_tokens_per_second", 0.0),
        ("decode_step_seconds", float("inf")),
        ("speed", float("nan")),
        ("load_line", 0.0),
        ("load_line", 1.1),
    ],
)
def test_a_setting_out_of_bounds_is_named(field: str, value: float) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{field} is "):
        replace(SLOW, **{field: value})


def test_the_example_of_the_package_is_true() -> None:
    assert doctest.testmod(kvcache.replay).failed == 0


def test_a_replay_needs_no_torch() -> None:
    code = "import sys, kvcache.replay; print('torch' in sys.modules, 'service' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False False\n"
