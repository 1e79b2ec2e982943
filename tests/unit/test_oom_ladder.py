"""The rungs of the OOM ladder, and how the token budget comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.engine.figures import OomRung
from service.engine.ladder import Measure, OomLadder

RETRY, SHRINK, REQUEUE, FAIL = OomRung
CLIMB = [RETRY, RETRY, RETRY, SHRINK, SHRINK, REQUEUE, FAIL]


def climb(ladder: OomLadder, failures: int, step_tokens: int | None = None) -> list[Measure]:
    """So many failures in a row, each of as large a step as the budget allows."""
    return [
        ladder.failed(step_tokens or ladder.step_tokens, 1000, float(number))
        for number in range(failures)
    ]


def succeed(ladder: OomLadder, steps: int) -> None:
    for _ in range(steps):
        ladder.succeeded(1)


def good_steps_until_full(ladder: OomLadder, most: int = 10_000) -> int:
    for number in range(most):
        if ladder.step_tokens == 512:
            return number
        ladder.succeeded(1)
    raise AssertionError(f"{ladder.step_tokens} tokens after {most} good steps")


def test_each_rung_is_tried_before_the_next_one() -> None:
    assert [measure.rung for measure in climb(OomLadder(512, 0.0), 14)] == CLIMB + CLIMB


def test_a_step_that_succeeds_ends_the_climb() -> None:
    ladder = OomLadder(512, 0.0)
    climb(ladder, 6)
    succeed(ladder, 1)
    assert climb(ladder, 1)[0].rung is RETRY


def test_retries_halve_the_step_that_failed_not_only_its_budget() -> None:
    ladder = OomLadder(512, 0.0)
    assert [measure.step_tokens for measure in climb(ladder, 3)] == [256, 128, 64]
    ladder = OomLadder(512, 0.0)
    assert climb(ladder, 1, step_tokens=40)[0].step_tokens == 20


def test_a_step_of_one_token_is_not_halved() -> None:
    assert climb(OomLadder(512, 0.0), 1, step_tokens=1)[0].step_tokens == 1


def test_the_pool_gives_back_what_was_wanted_and_a_quarter() -> None:
    shrinks = [measure.shrink_bytes for measure in climb(OomLadder(512, 0.0), 7)]
    assert shrinks == [0, 0, 0, 1250, 1250, 1250, 0]


def test_the_last_one_is_tried_in_the_smallest_step_before_it_fails() -> None:
    measures = climb(OomLadder(512, 0.0), 7)
    assert [(m.rung, m.step_tokens) for m in measures[-2:]] == [(REQUEUE, 1), (FAIL, 1)]


def test_the_budget_doubles_after_some_good_steps() -> None:
    ladder = OomLadder(512, 0.0)
    climb(ladder, 2)
    succeed(ladder, 7)
    assert ladder.step_tokens == 128
    succeed(ladder, 1)
    assert ladder.step_tokens == 256
    assert good_steps_until_full(ladder) == 8


def test_where_a_size_fails_again_and_again_it_is_tried_more_and_more_rarely() -> None:
    ladder = OomLadder(512, 0.0)
    climb(ladder, 1)
    waits = []
    for _ in range(7):
        waits.append(0)
        while ladder.step_tokens == 256:
            ladder.succeeded(200)
            waits[-1] += 1
        climb(ladder, 1, step_tokens=512)
    assert waits == [8, 16, 32, 64, 128, 256, 256]


def test_a_size_that_succeeds_again_ends_that() -> None:
    ladder = OomLadder(512, 0.0)
    for _ in range(3):
        climb(ladder, 1, step_tokens=512)
        good_steps_until_full(ladder)
    ladder.succeeded(512)
    climb(ladder, 1)
    assert good_steps_until_full(ladder) == 8


def test_failures_that_have_nothing_to_do_with_the_size_do_not_slow_the_return() -> None:
    ladder = OomLadder(512, 0.0)
    for _ in range(5):
        climb(ladder, 1, step_tokens=400)
        while ladder.step_tokens < 400:
            ladder.succeeded(ladder.step_tokens)
        ladder.succeeded(400)
    climb(ladder, 1, step_tokens=400)
    assert good_steps_until_full(ladder) == 16  # 200, 400, 512


def test_before_the_last_rung_it_waits_and_tries_again_and_again() -> None:
    ladder = OomLadder(512, wait_seconds=10.0)
    now_seconds, rungs, rests = 100.0, [], []
    while FAIL not in rungs:
        rungs.append(ladder.failed(1, 1000, now_seconds).rung)
        began = now_seconds
        while ladder.is_resting(now_seconds):
            now_seconds += 0.001
        rests.append(round(now_seconds - began, 1))
    waits = len(rungs) - len(CLIMB)
    assert rungs == CLIMB[:-1] + [REQUEUE] * waits + [FAIL]
    assert rests[:6] == [0.0] * 6
    assert rests[6:11] == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert max(rests) == 2.0
    assert rests[-1] == 2.0, "a shortage that is about to end takes no second one"
    assert 112.0 <= now_seconds < 114.1
    # The next one does not wait as long again: no step has succeeded since.
    assert [ladder.failed(1, 1000, now_seconds).rung for _ in CLIMB] == CLIMB


def test_a_step_that_succeeds_renews_the_wait() -> None:
    ladder = OomLadder(512, wait_seconds=5.0)
    for start in (100.0, 200.0):
        rungs = [ladder.failed(1, 1000, start + 0.5 * number).rung for number in range(10)]
        assert FAIL not in rungs
        succeed(ladder, 1)


def test_every_rung_is_counted() -> None:
    ladder = OomLadder(512, 0.0)
    climb(ladder, 9)
    assert ladder.rungs == (5, 2, 1, 1)


def test_when_memory_ran_out_last_is_known() -> None:
    ladder = OomLadder(512, 0.0)
    assert ladder.failed_seconds is None
    ladder.failed(10, 1, 12.5)
    succeed(ladder, 1)
    assert ladder.failed_seconds == 12.5


@given(
    full=st.integers(1, 4096),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 4096)), max_size=300),
)
def test_whatever_happens_the_budget_is_usable_and_comes_back(
    full: int, steps: list[tuple[bool, int]]
) -> None:
    ladder = OomLadder(full, 0.0)
    in_a_row = 0
    for number, (is_good, tokens) in enumerate(steps):
        if is_good:
            before = ladder.step_tokens
            ladder.succeeded(min(tokens, before))
            in_a_row = 0
            assert before <= ladder.step_tokens <= full
        else:
            before = ladder.step_tokens
            measure = ladder.failed(min(tokens, before), 1, float(number))
            assert measure.rung is CLIMB[in_a_row % len(CLIMB)]
            in_a_row += 1
            assert 1 <= ladder.step_tokens <= before
    succeed(ladder, 13 * 256)
    assert ladder.step_tokens == full
