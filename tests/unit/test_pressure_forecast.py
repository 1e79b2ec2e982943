"""When the blocks run out: the forecast against decoding it out, and learned lengths."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcache import FOREVER_SECONDS, OutputLengths, forecast_exhaustion
from kvcache.errors import InvalidArgumentError


def forecast(
    sequences: list[tuple[int, int]],
    available_blocks: int,
    *,
    held_blocks: int = 10**9,
    block_tokens: int = 4,
    steps_per_second: float = 1.0,
) -> float:
    """`sequences`: tokens that have a slot, and tokens still to come."""
    tokens, remaining = np.array(sequences, np.int64).reshape(-1, 2).T
    return forecast_exhaustion(
        tokens,
        remaining,
        held_blocks=held_blocks,
        available_blocks=available_blocks,
        block_tokens=block_tokens,
        steps_per_second=steps_per_second,
    )


def decoded_out(
    sequences: list[tuple[int, int]], available_blocks: int, block_tokens: int
) -> float:
    """The step in which one finds no block, when all decode to their ends."""
    live = [[tokens, left, -(-tokens // block_tokens)] for tokens, left in sequences]
    step = 0
    while live:
        step += 1
        available_blocks += sum(blocks for _, left, blocks in live if not left)
        live = [sequence for sequence in live if sequence[1]]
        for sequence in live:
            if sequence[0] % block_tokens == 0:
                sequence[2] += 1
                available_blocks -= 1
            sequence[0] += 1
            sequence[1] -= 1
        if available_blocks < 0:
            return float(step)
    return FOREVER_SECONDS


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40)), max_size=6),
    st.integers(0, 20),
    st.integers(1, 6),
)
def test_with_known_lengths_the_forecast_is_exact(
    sequences: list[tuple[int, int]], available_blocks: int, block_tokens: int
) -> None:
    said = forecast(sequences, available_blocks, block_tokens=block_tokens)
    assert said == decoded_out(sequences, available_blocks, block_tokens)


def test_time_follows_from_the_pace_of_steps() -> None:
    assert forecast([(4, 100)], 2) == 9.0
    assert forecast([(4, 100)], 2, steps_per_second=4.0) == 2.25
    assert forecast([(4, 100)], 2, steps_per_second=0.0) == FOREVER_SECONDS
    assert forecast([(4, 100)], 2, steps_per_second=math.nan) == FOREVER_SECONDS
    assert forecast([(4, 100)], 2, steps_per_second=1e-9) == FOREVER_SECONDS


def test_nobody_grows() -> None:
    assert forecast([], 0) == FOREVER_SECONDS
    assert forecast([(5, 0), (9, 0)], 0) == FOREVER_SECONDS


def test_a_pool_with_less_than_nothing_left_is_exhausted_by_the_next_block() -> None:
    assert forecast([(7, 3)], -5) == 2.0


def test_a_shared_block_comes_back_with_its_last_holder() -> None:
    """Three of 40 tokens, all alike: what two bring back depends on whose blocks they were."""
    sequences = [(40, 2), (40, 2), (40, 90)]
    assert forecast(sequences, 4, held_blocks=30) == FOREVER_SECONDS
    assert forecast(sequences, 4, held_blocks=10) == 41.0
    assert forecast(sequences, 4, held_blocks=0) == 17.0


def test_a_block_has_at_least_one_token() -> None:
    with pytest.raises(InvalidArgumentError, match="block_tokens is 0, but must be at least 1"):
        forecast([(1, 1)], 1, block_tokens=0)


@given(
    st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 3000)), max_size=20),
    st.integers(-5, 10**4),
    st.integers(0, 10**6),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_a_forecast_is_a_time(
    sequences: list[tuple[int, int]],
    available_blocks: int,
    held_blocks: int,
    steps_per_second: float,
) -> None:
    said = forecast(
        sequences, available_blocks, held_blocks=held_blocks, steps_per_second=steps_per_second
    )
    assert 0.0 <= said <= FOREVER_SECONDS
    more = forecast(
        sequences, available_blocks + 1, held_blocks=held_blocks, steps_per_second=steps_per_second
    )
    assert more >= said, "with more blocks they last longer"


# --- learned lengths -----------------------------------------------------------


def likely(lengths: OutputLengths, *outputs: tuple[int, int], first_id: int = 0) -> list[int]:
    """`outputs`: length so far, and limit. The ids 0, 1, 2 have quantiles 0.5, 0.12 and 0.74."""
    so_far, limits = np.array(outputs, np.int64).T
    ids = np.arange(first_id, first_id + len(outputs))
    return lengths.likely_remaining(ids, so_far, limits).tolist()


def learned(*seen: int, memory: int = 512) -> OutputLengths:
    lengths = OutputLengths(memory)
    for length in seen:
        lengths.add(length, ended_by_itself=True)
    return lengths


def test_nothing_learned_means_the_limit() -> None:
    assert likely(OutputLengths(), (0, 100), (30, 100), (100, 100), (101, 100)) == [100, 70, 0, 0]


def test_each_sequence_has_its_quantile_of_those_that_are_longer() -> None:
    lengths = learned(40, 10, 30, 20)
    assert likely(lengths, (0, 99), (0, 99), (0, 99)) == [20, 10, 30]
    assert likely(lengths, (10, 99), (10, 99), (10, 99)) == [20, 10, 30]
    assert likely(lengths, (29, 99), (29, 99), (29, 99)) == [1, 1, 11]
    assert likely(lengths, (40, 99), (50, 99), (0, 5)) == [59, 49, 5], "nothing longer was seen"


def test_a_sequence_keeps_its_quantile_when_others_have_ended() -> None:
    lengths = learned(*range(1, 101))
    limits = [(0, 1000)] * 30
    assert likely(lengths, *limits)[7:] == likely(lengths, *limits[7:], first_id=7)


def test_those_that_were_cut_do_not_make_the_others_short() -> None:
    lengths = OutputLengths()
    for _ in range(50):
        lengths.add(8, ended_by_itself=False)
    assert likely(lengths, (0, 100)) == [100]
    lengths.add(40, ended_by_itself=True)
    assert likely(lengths, (0, 100)) == [40]
    for _ in range(50):
        lengths.add(4, ended_by_itself=True)
    assert likely(lengths, (0, 100), (0, 100), (4, 100)) == [40, 4, 36], "half of 101 ended at 4"


def test_what_is_long_ago_is_forgotten() -> None:
    assert likely(learned(500, 10, 10, 10, memory=3), (0, 1000)) == [10]
    with pytest.raises(InvalidArgumentError, match="memory is 0, but must be at least 1"):
        OutputLengths(memory=0)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=30),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 100)), min_size=1, max_size=8),
)
def test_what_is_likely_is_within_the_limit(
    seen: list[tuple[int, bool]], outputs: list[tuple[int, int]]
) -> None:
    lengths = OutputLengths()
    for length, by_itself in seen:
        lengths.add(length, ended_by_itself=by_itself)
    for (so_far, limit), left in zip(outputs, likely(lengths, *outputs), strict=True):
        assert min(1, max(0, limit - so_far)) <= left <= max(0, limit - so_far)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("available_blocks", [40, 200, 230, 400])
def test_a_learned_forecast_is_near_what_happens(seed: int, available_blocks: int) -> None:
    """64 outputs of 60 to 200 tokens, whose limit is 4000, and whose lengths nobody knows."""
    rng = np.random.default_rng(seed)
    lengths = learned(*rng.integers(60, 200, 512).tolist())
    tokens = rng.integers(8, 100, 64).tolist()
    true_lengths = rng.integers(60, 200, 64).tolist()

    def said(remaining: list[int]) -> float:
        sequences = list(zip(tokens, remaining, strict=True))
        return forecast(sequences, available_blocks, block_tokens=16)

    truth = decoded_out(list(zip(tokens, true_lengths, strict=True)), available_blocks, 16)
    assert truth / 1.5 <= said(likely(lengths, *[(0, 4000)] * 64)) <= truth * 1.5
    assert said([4000] * 64) < 120, "limits alone would have told of an end that does not come"
