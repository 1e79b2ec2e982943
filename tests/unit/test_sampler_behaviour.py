"""What clients rely on in the sampler, one behaviour a test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from engine_fakes import spec_of

from service.engine.draw import draw as draw_index
from service.engine.draw import levels
from service.engine.messages import SamplingParams
from service.engine.penalties import TokenCounts
from service.engine.random_numbers import uniforms
from service.engine.sampler import SamplerState, sample, token_logprob, unusable_logits
from service.engine.truncation import top_ids


def logits_of(seed: int, vocab_size: int = 1000) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, vocab_size).astype(np.float32)


def draw(logits: np.ndarray, params: SamplingParams, count: int = 50, **spec: object) -> list[int]:
    state = SamplerState(spec_of(1, prompt=spec.pop("prompt", [0]), sampling=params, **spec))
    return [sample(logits[None], [state])[0].token_id for _ in range(count)]


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-8, 1e-4])
def test_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = logits_of(0) * np.float32(1e4)
    chosen = draw(logits, SamplingParams(temperature=temperature, top_p=0.95))
    assert set(chosen) == {int(logits.argmax())}


def test_temperature_just_above_greedy_neither_overflows_nor_fails() -> None:
    logits = logits_of(0) * np.float32(1e30)
    chosen = draw(logits, SamplingParams(temperature=2e-4))
    assert set(chosen) == {int(logits.argmax())}


def test_top_k_1_is_greedy_at_any_temperature_also_in_a_tie() -> None:
    logits = np.zeros(100, np.float32)
    logits[[17, 42]] = 5.0
    assert set(draw(logits, SamplingParams(temperature=1.5, top_k=1))) == {17}


def test_top_k_keeps_exactly_k_in_a_tie() -> None:
    logits = np.zeros(100, np.float32)
    chosen = draw(logits, SamplingParams(temperature=1.0, top_k=3), count=200)
    assert set(chosen) == {0, 1, 2}


def test_huge_temperature_without_truncation_is_nearly_uniform() -> None:
    logits = logits_of(0, vocab_size=8)
    chosen = draw(logits, SamplingParams(temperature=1e6), count=4000)
    counts = np.bincount(chosen, minlength=8)
    assert counts.min() > 400
    assert counts.max() < 600


def test_temperature_comes_before_truncation() -> None:
    logits = np.array([10.0, 0.0, 0.0, 0.0], np.float32)
    cold = draw(logits, SamplingParams(temperature=1.0, top_p=0.9))
    hot = draw(logits, SamplingParams(temperature=1e6, top_p=0.9))
    assert set(cold) == {0}
    assert len(set(hot)) == 4


def test_repetition_counts_prompt_and_output_the_other_penalties_output_only() -> None:
    logits = np.array([2.0, 1.0], np.float32)
    paris = {"prompt": [0, 0]}
    assert draw(logits, SamplingParams(temperature=0.0, repetition_penalty=3.0), 1, **paris) == [1]
    for params in (
        SamplingParams(temperature=0.0, presence_penalty=1.5),
        SamplingParams(temperature=0.0, frequency_penalty=1.5),
    ):
        assert draw(logits, params, 2, **paris) == [0, 1]


def test_frequency_grows_with_every_use_presence_does_not() -> None:
    logits = np.array([3.0, 0.0], np.float32)
    frequency = SamplingParams(temperature=0.0, frequency_penalty=1.0)
    presence = SamplingParams(temperature=0.0, presence_penalty=1.0)
    assert draw(logits, frequency, 5) == [0, 0, 0, 0, 1]
    assert draw(logits, presence, 5) == [0] * 5


def test_negative_logits_are_pushed_down_by_repetition() -> None:
    logits = np.array([-1.0, -1.5], np.float32)
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    assert draw(logits, params, 1, prompt=[0]) == [1]


def test_tiny_repetition_penalty_stays_finite() -> None:
    params = SamplingParams(temperature=1.0, repetition_penalty=1e-40)
    assert draw(np.array([5.0, 1.0], np.float32), params, 3, prompt=[0]) == [0, 0, 0]


def test_bias_does_not_lift_a_ban() -> None:
    params = SamplingParams(temperature=0.0, logit_bias={0: 100.0})
    chosen = draw(np.array([1.0, 0.0], np.float32), params, 4, eos_ids=(0,), min_tokens=3)
    assert chosen == [1, 1, 1, 0]


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    rows = [logits_of(i, vocab_size=5000) for i in range(4)]
    params = [
        SamplingParams(temperature=0.0, repetition_penalty=2.0),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.2, seed=9, logprobs=3),
        SamplingParams(temperature=0.8, top_p=0.9, frequency_penalty=1.0, seed=9, logprobs=0),
    ]

    def run(order: list[int]) -> dict[int, list[object]]:
        states = {i: SamplerState(spec_of(i, prompt=[1, 2, 3], sampling=params[i])) for i in order}
        said: dict[int, list[object]] = {i: [] for i in order}
        for _ in range(20):
            chosen = sample(np.stack([rows[i] for i in order]), [states[i] for i in order])
            for i, one in zip(order, chosen, strict=True):
                said[i].append(one)
        return said

    together, reversed_ = run([0, 1, 2, 3]), run([3, 2, 1, 0])
    alone = {i: run([i])[i] for i in range(4)}
    assert together == reversed_ == alone


def test_random_numbers_depend_on_seed_and_index_alone() -> None:
    numbers = [uniforms(5, index, 16) for index in range(1000)]
    assert numbers[700] == uniforms(5, 700, 16)
    assert numbers[700][:5] == uniforms(5, 700, 5)
    assert uniforms(6, 700, 16) != numbers[700]
    flat = [number for row in numbers for number in row]
    assert len(set(flat)) == 16_000, "tokens share no number"
    assert 0.49 < float(np.mean(flat)) < 0.51
    assert all(0.0 <= number < 1.0 for number in flat)
    assert uniforms(2**64 - 1, 0, 1) != uniforms(2**63 - 1, 0, 1)


def test_the_stream_of_random_numbers_never_changes() -> None:
    # A resumed stream must draw the same numbers under a newer build.
    pinned = [[0.8201981478608876, 0.18924562408645496], [0.20650309990981752, 0.23936640288607913]]
    assert [uniforms(42, index, 2) for index in range(2)] == pinned


def test_a_little_noise_in_the_logits_seldom_changes_the_token() -> None:
    """Logits of another batch shape differ in their last bits: the stream should not."""
    noise = np.random.default_rng(1)
    logits = noise.normal(0, 2, 49152).astype(np.float32)
    params = SamplingParams(temperature=1.0, seed=7)
    clean, noisy = (SamplerState(spec_of(1, prompt=[0], sampling=params)) for _ in range(2))
    changed = 0
    for _ in range(1000):
        other = logits + noise.normal(0, 1e-4, len(logits)).astype(np.float32)
        ((one,), (two,)) = sample(logits[None], [clean]), sample(other[None], [noisy])
        changed += one != two
    assert changed <= 3


def test_state_resumed_with_output_goes_on_as_if_never_interrupted() -> None:
    logits = logits_of(3)
    params = SamplingParams(temperature=1.0, frequency_penalty=0.7, repetition_penalty=1.2, seed=8)
    whole = draw(logits, params, 20, min_tokens=15, eos_ids=(5,))
    rest = draw(logits, params, 13, min_tokens=15, eos_ids=(5,), output_ids=whole[:7])
    assert rest == whole[7:]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_logits_that_are_not_finite_are_counted(bad: float) -> None:
    logits = np.stack([logits_of(0), logits_of(1)])
    assert unusable_logits(logits) == unusable_logits(logits[:0]) == 0
    logits[1, 77] = logits[0, 3] = bad
    assert unusable_logits(logits) == 2


def test_logprobs_are_those_of_the_model_whatever_the_sampling() -> None:
    logits = logits_of(4)
    params = SamplingParams(temperature=0.5, top_k=5, presence_penalty=2.0, logprobs=3)
    state = SamplerState(spec_of(1, prompt=[0], sampling=params))
    (sampled,) = sample(logits[None], [state])
    exact = logits.astype(np.float64)
    reference = exact - np.log(np.exp(exact).sum())
    assert sampled.logprob is not None
    assert sampled.logprob.logprob == pytest.approx(reference[sampled.token_id], abs=1e-6)
    assert sampled.logprob.top_ids == np.argsort(-exact, kind="stable")[:3].tolist()
    assert sampled.logprob.top_logprobs == pytest.approx(np.sort(reference)[::-1][:3], abs=1e-6)


def test_logprobs_of_large_logits_are_finite() -> None:
    logits = np.array([3e4, -3e4, 0.0], np.float32)
    assert token_logprob(logits, 0, 3).logprob == 0.0
    assert token_logprob(logits, 1, 0).logprob == -6e4
    assert token_logprob(logits, 1, 0).top_ids == []


@pytest.mark.parametrize("count", [1, 2, 7, 99, 100, 500])
def test_top_ids_are_the_head_of_a_stable_sort(count: int) -> None:
    logits = np.round(logits_of(5, vocab_size=100))
    expected = np.argsort(-logits, kind="stable")[:count]
    np.testing.assert_array_equal(top_ids(logits, count), expected)


def test_token_counts_grow_past_their_first_room() -> None:
    counts = TokenCounts()
    for token in [*range(200), *range(100), 7]:
        counts.add(token)
    assert counts.ids.tolist() == list(range(200))
    assert counts.counts[7] == 3
    assert counts.counts[150] == 1


def test_tokens_without_weight_are_never_drawn_not_even_at_the_ends() -> None:
    weights = np.zeros(700, np.float32)
    weights[[300, 650]] = [1.0, 3.0]
    rest = [0.5] * (levels(len(weights)) - 1)
    numbers = (0.0, 0.24, 0.25, 0.26, 1 - 2**-53)
    drawn = [draw_index(weights, [number, *rest]) for number in numbers]
    assert drawn == [300, 300, 650, 650, 650]


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 700, 49152])
@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_the_only_token_with_weight_is_always_drawn(size: int, number: float) -> None:
    for index in {0, size // 2, size - 1}:
        weights = np.zeros(size, np.float32)
        weights[index] = 1e-30
        assert draw_index(weights, [number] * levels(size)) == index
