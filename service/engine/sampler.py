"""Chooses the next token of each sequence from its row of logits.

Order of operations, the same for every sequence:

1. logprobs, when asked for, are the log-softmax of the model's own logits: what follows
   does not change them, and they mean the same for prompt and output tokens;
2. penalties, bias and bans (`penalties`);
3. temperature: at `GREEDY_TEMPERATURE` and below the largest logit wins, the lower id in a
   tie, and nothing below matters; above it logits are divided by the temperature;
4. top-k, top-p, min-p (`truncation`);
5. random numbers that depend on (seed, token index) alone choose one of what is left
   (`draw`).

Every row is computed by itself, so that batch neighbours cannot change one bit of it.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from service.engine.draw import draw, levels
from service.engine.messages import SamplingParams, SequenceSpec, TokenLogprob
from service.engine.penalties import LogitAdjuster
from service.engine.random_numbers import uniforms
from service.engine.truncation import surviving_ids, top_ids

GREEDY_TEMPERATURE = 1e-4
"""Below it the most likely token has all the weight that 32-bit logits can express."""

Row: TypeAlias = NDArray[np.float32]


class SamplerState:
    """What sampling keeps per sequence between steps; survives preemption."""

    def __init__(self, spec: SequenceSpec) -> None:
        self.sequence_id = spec.sequence_id
        self.params = spec.sampling
        self.token_index = len(spec.output_ids)  # of the next output token
        self.adjuster = LogitAdjuster(spec)

    def observe(self, token_id: int) -> None:
        """Takes note of the token that was chosen."""
        self.token_index += 1
        self.adjuster.observe(token_id)


@dataclass(frozen=True, slots=True)
class Sampled:
    """The next token of one sequence."""

    token_id: int
    logprob: TokenLogprob | None


def sample(logits: NDArray[np.float32], states: Rows[SamplerState]) -> list[Sampled]:
    """Chooses one token per row; the states take note of it.

    Args:
        logits: [R, V], finite; the caller's afterwards, unchanged.
        states: R states, in the order of the rows.
    """
    best = logits.argmax(axis=1).tolist()
    sampled = []
    for row, state, greedy_id in zip(logits, states, best, strict=True):
        token_id = _choose(row, state, greedy_id)
        logprob = None
        if state.params.logprobs is not None:
            logprob = token_logprob(row, token_id, state.params.logprobs)
        sampled.append(Sampled(token_id, logprob))
        state.observe(token_id)
    return sampled


def unusable_logits(logits: NDArray[np.float32]) -> int:
    """How many of the values are NaN or infinite: weights, KV or kernel are broken there."""
    return int(logits.size - np.count_nonzero(np.isfinite(logits)))


def token_logprob(logits: Row, token_id: int, alternatives: int) -> TokenLogprob:
    """Log-softmax of one row at `token_id` and at the `alternatives` most likely tokens."""
    top = top_ids(logits, alternatives) if alternatives else np.empty(0, np.intp)
    peak = logits.max()
    log_total = float(np.log(np.exp(logits - peak).sum(dtype=np.float64))) + float(peak)
    return TokenLogprob(
        token_id=token_id,
        logprob=float(logits[token_id]) - log_total,
        top_ids=top.tolist(),
        top_logprobs=(logits[top].astype(np.float64) - log_total).tolist(),
    )


def _choose(logits: Row, state: SamplerState, greedy_id: int) -> int:
    greedy = state.params.temperature <= GREEDY_TEMPERATURE
    if state.adjuster.changes_logits:
        logits = logits.copy()
        state.adjuster.apply(logits)
        greedy_id = int(logits.argmax())
    if greedy:
        return greedy_id
    with np.errstate(over="ignore"):  # -inf is right: such a token has no weight
        scaled = (logits - logits[greedy_id]) / np.float32(state.params.temperature)
    weights = _truncated(np.exp(scaled), state.params)
    numbers = uniforms(state.params.seed, state.token_index, levels(len(weights)))
    return draw(weights, numbers)


def _truncated(weights: Row, params: SamplingParams) -> Row:
    """The weights [V] with 0 for every token that the truncations drop.

    Tokens keep their places, so that one that is in or out by a hair moves no other one.
    """
    keeps_all = params.top_k == 0 or params.top_k >= len(weights)
    if keeps_all and params.top_p >= 1.0 and params.min_p <= 0.0:
        return weights
    ids = surviving_ids(weights, params.top_k, params.top_p, params.min_p)
    kept = np.zeros_like(weights)
    kept[ids] = weights[ids]
    return kept
