"""When the client tries again: pure parts."""

from __future__ import annotations

import random

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.client.errors import FieldViolation, PlimsollError
from service.client.retry import NO_RETRY, PATIENT, RetryBudget, RetryPolicy, RetryState

UNAVAILABLE = PlimsollError("gone", grpc.StatusCode.UNAVAILABLE)


def state(
    policy: RetryPolicy, budget: RetryBudget | None = None, rng: random.Random | None = None
) -> RetryState:
    return RetryState(policy, budget or RetryBudget(), rng or random.Random(1))


@given(
    attempt=st.integers(1, 40),
    retry_after=st.none() | st.floats(0, 100),
    seed=st.integers(0, 99),
)
def test_delays_grow_up_to_the_limit_and_never_undercut_the_server(
    attempt: int, retry_after: float | None, seed: int
) -> None:
    policy = RetryPolicy(initial_seconds=0.1, multiplier=2, max_seconds=3)
    delay = policy.delay_seconds(attempt, retry_after, random.Random(seed))
    backoff = min(3, 0.1 * 2 ** (attempt - 1))
    assert delay >= 0.8 * backoff
    assert delay <= 1.2 * max(backoff, retry_after or 0)
    if retry_after is not None:
        assert delay >= retry_after


def test_delays_are_jittered() -> None:
    rng = random.Random(0)
    delays = {RetryPolicy().delay_seconds(1, 5.0, rng) for _ in range(20)}
    assert len(delays) == 20


def test_attempts_are_limited_and_count_again_after_progress() -> None:
    tries = state(RetryPolicy(max_attempts=3))
    assert tries.pause_seconds(UNAVAILABLE, None) is not None
    assert tries.pause_seconds(UNAVAILABLE, None) is not None
    assert tries.pause_seconds(UNAVAILABLE, None) is None
    tries.reset()
    assert tries.pause_seconds(UNAVAILABLE, None) is not None
    assert state(NO_RETRY).pause_seconds(UNAVAILABLE, None) is None


def test_the_patient_policy_outlives_a_loading_model() -> None:
    tries = state(PATIENT)
    waited = 0.0
    while (pause := tries.pause_seconds(UNAVAILABLE, None)) is not None:
        waited += pause
    assert 25 < waited < 50


def test_no_pause_beyond_the_deadline() -> None:
    assert state(RetryPolicy(initial_seconds=1)).pause_seconds(UNAVAILABLE, 0.7) is None
    assert state(RetryPolicy(initial_seconds=1)).pause_seconds(UNAVAILABLE, 1.3) is not None


@pytest.mark.parametrize(
    ("error", "is_transient"),
    [
        (PlimsollError("", grpc.StatusCode.UNAVAILABLE), True),
        (PlimsollError("", grpc.StatusCode.UNAVAILABLE, may_retry=False), False),
        (PlimsollError("", grpc.StatusCode.ABORTED, reason="ENGINE_LOST"), True),
        (PlimsollError("", grpc.StatusCode.ABORTED), False),
        (PlimsollError("", grpc.StatusCode.RESOURCE_EXHAUSTED, retry_after_seconds=0.0), True),
        (PlimsollError("", grpc.StatusCode.RESOURCE_EXHAUSTED), False),
        (PlimsollError("", grpc.StatusCode.INVALID_ARGUMENT), False),
        (PlimsollError("", grpc.StatusCode.DEADLINE_EXCEEDED), False),
        (PlimsollError("", grpc.StatusCode.CANCELLED), False),
    ],
)
def test_which_errors_pass_by_themselves(error: PlimsollError, is_transient: bool) -> None:
    assert error.is_transient is is_transient
    assert (state(RetryPolicy()).pause_seconds(error, None) is not None) is is_transient


@pytest.mark.parametrize("reason", ["QUEUE_FULL", "DEADLINE_UNREACHABLE"])
def test_a_refusal_for_load_is_tried_again_when_the_server_said_and_time_is_left(
    reason: str,
) -> None:
    """Perhaps on another replica. A deadline that is nearer than the hint is the end."""
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    refusal = PlimsollError("busy", code, reason, retry_after_seconds=2.0)
    pause = state(RetryPolicy()).pause_seconds(refusal, 10.0)
    assert pause is not None
    assert 2.0 <= pause <= 2.4
    assert state(RetryPolicy()).pause_seconds(refusal, 2.0) is None


def test_the_budget_stops_retries_of_all_calls_until_calls_succeed() -> None:
    budget = RetryBudget(capacity=10, tokens_per_success=1)
    granted = 0
    while state(RetryPolicy(), budget).pause_seconds(UNAVAILABLE, None) is not None:
        granted += 1
    assert granted == 4  # 10 tokens, a failure costs one, more than 5 must be left
    assert not budget.allows_retry
    budget.record_success()
    assert budget.allows_retry


def test_refusals_of_a_request_cost_no_budget() -> None:
    budget = RetryBudget(capacity=2)
    for _ in range(10):
        state(RetryPolicy(), budget).pause_seconds(
            PlimsollError("", grpc.StatusCode.INVALID_ARGUMENT), None
        )
    assert budget.allows_retry


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_attempts": 0}, "max_attempts: 0"),
        ({"initial_seconds": 0}, "initial_seconds"),
        ({"initial_seconds": 9, "max_seconds": 1}, "max_seconds"),
        ({"multiplier": 0.5}, "multiplier: 0.5"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(fields: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RetryPolicy(**fields)  # type: ignore[arg-type]


def test_errors_say_what_is_wrong_in_one_line() -> None:
    error = PlimsollError(
        "bad request",
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
        violations=(
            FieldViolation("options.priority", "101 is more than 100"),
            FieldViolation("options.sampling.seed", "options.sampling.seed = -1: too small"),
        ),
    )
    assert str(error) == (
        "INVALID_ARGUMENT (INVALID_FIELD): options.priority: 101 is more than 100; "
        "options.sampling.seed = -1: too small"
    )
    assert str(PlimsollError("", grpc.StatusCode.INTERNAL)) == "INTERNAL: no details"
