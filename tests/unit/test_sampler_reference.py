"""The sampler against a slow float64 reference that follows the documented order word by word."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from engine_fakes import spec_of
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from service.engine.messages import SamplingParams, SequenceSpec
from service.engine.random_numbers import uniforms
from service.engine.sampler import GREEDY_TEMPERATURE, SamplerState, sample

F64 = NDArray[np.float64]


def adjusted(logits: F64, spec: SequenceSpec, output: list[int]) -> F64:
    """Penalties, bias and bans, one token at a time."""
    params = spec.sampling
    logits = logits.copy()
    for token in {*spec.prompt_ids, *output}:
        penalty = params.repetition_penalty
        logits[token] = logits[token] / penalty if logits[token] > 0 else logits[token] * penalty
    for token, count in Counter(output).items():
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    if len(output) < spec.min_tokens:
        logits[[*spec.eos_ids, *spec.stop_ids]] = -math.inf
    return logits


def distribution(logits: F64, params: SamplingParams) -> F64:
    """Probability of every token after temperature and truncation."""
    if params.temperature <= GREEDY_TEMPERATURE:
        return np.eye(len(logits))[int(np.argmax(logits))]
    scaled = (logits - logits.max()) / params.temperature
    weights = np.exp(scaled)
    order = sorted(range(len(logits)), key=lambda token: (-scaled[token], token))
    kept = order[: params.top_k or len(order)]
    total, seen, nucleus = sum(weights[kept]), 0.0, []
    for token in kept:
        nucleus.append(token)
        seen += weights[token]
        if seen >= params.top_p * total * (1 - 1e-12):
            break
    if params.top_p >= 1.0:
        nucleus = kept
    kept = [token for token in nucleus if weights[token] >= params.min_p * weights.max()]
    probabilities = np.zeros(len(logits))
    probabilities[kept] = weights[kept] / sum(weights[kept])
    return probabilities


def state_after(spec: SequenceSpec, output: list[int]) -> SamplerState:
    state = SamplerState(spec)
    for token in output:
        state.observe(token)
    return state


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-8, 0.3, 1.0, 2.0]),
    top_k=st.sampled_from([0, 1, 3, 20, 1000]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.8]),
    presence_penalty=st.sampled_from([-1.0, 0.0, 1.0]),
    frequency_penalty=st.sampled_from([-0.5, 0.0, 0.5]),
    logit_bias=st.dictionaries(st.integers(0, 29), st.floats(-100, 100, width=32), max_size=3),
    seed=st.integers(0, 2**64 - 1),
)
TOKENS = st.lists(st.integers(0, 29), max_size=8)


def assert_chosen_by(token_id: int, seed: int, token_index: int, probabilities: F64) -> None:
    """Each number chose the half of the ids in which the token lies, down to the token.

    At an edge 32-bit and 64-bit arithmetic may differ, so that both halves are right.
    """
    assert probabilities[token_id] > 0
    depth = max(8, (len(probabilities) - 1).bit_length())
    ids = np.pad(probabilities, (0, 2**depth - len(probabilities)))
    for number in uniforms(seed, token_index, depth):
        lower, upper = np.split(ids, 2)
        share = lower.sum() / ids.sum()
        if token_id < len(lower):
            assert number <= share + 1e-5
            ids = lower
        else:
            assert number >= share - 1e-5
            ids, token_id = upper, token_id - len(lower)


@settings(max_examples=250, deadline=None)
@given(
    params=PARAMS,
    prompt=TOKENS,
    output=TOKENS,
    min_tokens=st.integers(0, 10),
    eos_ids=st.sets(st.integers(0, 29), max_size=3),
    noise=st.integers(0, 2**32 - 1),
    ties=st.booleans(),
)
def test_token_is_the_one_of_the_reference(
    params: SamplingParams,
    prompt: list[int],
    output: list[int],
    min_tokens: int,
    eos_ids: set[int],
    noise: int,
    ties: bool,
) -> None:
    spec = spec_of(1, prompt=prompt, sampling=params, eos_ids=tuple(eos_ids), min_tokens=min_tokens)
    logits = np.random.default_rng(noise).normal(0, 4, 30).astype(np.float32)
    if ties:
        logits = np.round(logits / 4) * 4
    before = logits.copy()

    (sampled,) = sample(logits[None], [state_after(spec, output)])

    changed = adjusted(logits.astype(np.float64), spec, output)
    if params.temperature <= GREEDY_TEMPERATURE:
        assert changed[sampled.token_id] >= changed.max() - 1e-4
    else:
        probabilities = distribution(changed, params)
        assert_chosen_by(sampled.token_id, params.seed, len(output), probabilities)
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("vocab_size", [1, 2, 255, 256, 257, 5000])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_p=0.95),
        SamplingParams(temperature=3.0, top_p=0.999),
        SamplingParams(temperature=1.0, top_k=300, top_p=0.9),
        SamplingParams(temperature=1.0, min_p=0.01),
    ],
)
def test_large_vocabularies_agree_with_the_reference(
    vocab_size: int, params: SamplingParams
) -> None:
    logits = np.random.default_rng(vocab_size).normal(0, 1, vocab_size).astype(np.float32)
    exact = logits.astype(np.float64)
    probabilities = distribution(exact, params)
    state = SamplerState(spec_of(1, prompt=[0], sampling=params))
    for index in range(200):
        (sampled,) = sample(logits[None], [state])
        assert_chosen_by(sampled.token_id, params.seed, index, probabilities)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.5, seed=2),
        SamplingParams(temperature=1.0, top_k=4, seed=3),
        SamplingParams(temperature=1.0, top_p=0.8, seed=4),
        SamplingParams(temperature=1.5, min_p=0.2, seed=5),
        SamplingParams(temperature=1.0, top_k=8, top_p=0.9, min_p=0.05, seed=6),
    ],
)
def test_frequencies_are_those_of_the_distribution(params: SamplingParams) -> None:
    draws, vocab_size = 4000, 12
    logits = np.random.default_rng(0).normal(0, 1.5, vocab_size).astype(np.float32)
    state = SamplerState(spec_of(1, prompt=[0], sampling=params))
    counts = np.zeros(vocab_size)
    for _ in range(draws):
        counts[sample(logits[None], [state])[0].token_id] += 1
    expected = draws * distribution(logits.astype(np.float64), params)
    possible = expected > 0
    assert counts[~possible].sum() == 0
    statistic = ((counts - expected)[possible] ** 2 / expected[possible]).sum()
    # 99.9 % quantile of chi-square, by Wilson and Hilferty.
    freedom = max(1, int(possible.sum()) - 1)
    limit = freedom * (1 - 2 / (9 * freedom) + 3.09 * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic < limit
