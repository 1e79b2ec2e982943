"""The pure rules of the scheduler."""

from __future__ import annotations

import pytest
from engine_fakes import spec_of
from hypothesis import given
from hypothesis import strategies as st

from service.engine.messages import SamplingParams
from service.engine.policy import (
    Chunk,
    SchedulerLimits,
    StepBudget,
    headroom_blocks,
)
from service.engine.request import Sequence


@given(
    tokens=st.integers(0, 100),
    chunk_tokens=st.integers(1, 100),
    logprob_rows=st.integers(0, 50),
    start=st.integers(0, 100),
    remaining=st.integers(1, 100),
    first_position=st.integers(0, 200),
    positions=st.integers(0, 100),
)
def test_a_chunk_is_as_long_as_its_budgets_allow(
    tokens: int,
    chunk_tokens: int,
    logprob_rows: int,
    start: int,
    remaining: int,
    first_position: int,
    positions: int,
) -> None:
    wanted = range(first_position, first_position + positions)
    budget = StepBudget(tokens, chunk_tokens, logprob_rows)
    count = budget.take(start, remaining, wanted)

    def rows(length: int) -> int:
        return sum(position in wanted for position in range(start, start + length))

    longest = min(tokens, chunk_tokens, remaining)
    assert count == max(n for n in range(longest + 1) if rows(n) <= logprob_rows)
    assert budget.tokens == tokens - count
    assert budget.logprob_rows == logprob_rows - rows(count)


def test_what_is_given_back_can_be_taken_again() -> None:
    sampling = SamplingParams(prompt_logprobs=0)
    sequence = Sequence(spec_of(1, range(20), sampling=sampling), order=1)
    budget = StepBudget(tokens=30, chunk_tokens=16, logprob_rows=10)
    assert budget.take(0, 20, sequence.missing_prompt_logprobs) == 10
    budget.give_back(Chunk(sequence, 0, 10))
    assert (budget.tokens, budget.logprob_rows) == (30, 10)


@pytest.mark.parametrize(
    ("max_running", "max_step", "expected"), [(64, 512, 64), (64, 64, 63), (64, 1, 1), (1, 512, 1)]
)
def test_a_batch_always_leaves_a_token_of_the_step_to_its_last_sequence(
    max_running: int, max_step: int, expected: int
) -> None:
    limits = SchedulerLimits(
        max_running_sequences=max_running,
        max_step_tokens=max_step,
        prefill_chunk_tokens=16,
        headroom_blocks=0,
        max_skips=0,
        prompt_logprob_rows=1,
    )
    assert limits.running_sequences == expected


@pytest.mark.parametrize(
    ("usable", "load_line", "expected"), [(100, 0.9, 10), (100, 1.0, 0), (1, 0.9, 1), (10, 0.25, 8)]
)
def test_headroom_is_what_lies_above_the_load_line(
    usable: int, load_line: float, expected: int
) -> None:
    assert headroom_blocks(usable, load_line) == expected
