"""Changes to the logits of one sequence that depend on its history or its request.

The state is kept per sequence and grows by one token per step; nothing is rebuilt. Order:

1. repetition penalty over prompt and output tokens (Keskar et al., "CTRL", 2019: positive
   logits are divided, negative ones multiplied),
2. frequency and presence penalties over output tokens only (as the OpenAI API defines them),
3. logit bias,
4. ban of EOS and stop ids until `min_tokens` are out. The ban is last: no bias undoes it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from service.engine.messages import SamplingParams, SequenceSpec

_LOGIT_LIMIT = np.float32(1e30)  # a penalty close to 0 must not divide a logit to infinity


class TokenCounts:
    """How often each distinct token was seen; compact, in order of first appearance."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._ids = np.empty(64, np.int64)
        self._counts = np.empty(64, np.float32)

    @property
    def ids(self) -> NDArray[np.int64]:
        """The distinct tokens."""
        return self._ids[: len(self._index)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Occurrences, aligned with `ids`."""
        return self._counts[: len(self._index)]

    def add(self, token_id: int) -> None:
        """Counts one more occurrence."""
        at = self._index.get(token_id)
        if at is not None:
            self._counts[at] += 1
            return
        at = len(self._index)
        if at == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.empty_like(self._counts)])
        self._index[token_id] = at
        self._ids[at] = token_id
        self._counts[at] = 1


class LogitAdjuster:
    """The penalties, bias and bans of one sequence, applied to its row of logits."""

    def __init__(self, spec: SequenceSpec) -> None:
        params = spec.sampling
        self._params = params
        self._min_tokens = spec.min_tokens
        self._banned_ids = np.array(sorted({*spec.eos_ids, *spec.stop_ids}), np.int64)
        self._bias_ids = np.fromiter(params.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(params.logit_bias.values(), np.float32)
        self._repeats = params.repetition_penalty != 1.0
        self._counts_output = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        self._seen = TokenCounts()
        self._output = TokenCounts()
        self._output_tokens = 0
        if self._repeats:
            for token_id in dict.fromkeys(spec.prompt_ids):
                self._seen.add(token_id)
        for token_id in spec.output_ids:
            self.observe(token_id)

    def observe(self, token_id: int) -> None:
        """Takes note of the next output token."""
        self._output_tokens += 1
        if self._repeats:
            self._seen.add(token_id)
        if self._counts_output:
            self._output.add(token_id)

    @property
    def bans(self) -> bool:
        """Whether EOS and stop ids are out of reach for the next token."""
        return self._output_tokens < self._min_tokens and len(self._banned_ids) > 0

    @property
    def changes_logits(self) -> bool:
        """Whether `apply` would do anything for the next token."""
        return self._repeats or self._counts_output or len(self._bias_ids) > 0 or self.bans

    def apply(self, logits: NDArray[np.float32]) -> None:
        """Changes the row [V] in place."""
        if self._repeats:
            _penalise_repetition(logits, self._seen.ids, self._params)
        if self._counts_output:
            ids, counts = self._output.ids, self._output.counts
            frequency = np.float32(self._params.frequency_penalty)
            logits[ids] -= frequency * counts + np.float32(self._params.presence_penalty)
        if len(self._bias_ids):
            logits[self._bias_ids] += self._bias
        if self.bans:
            logits[self._banned_ids] = -np.inf


def _penalise_repetition(
    logits: NDArray[np.float32], ids: NDArray[np.int64], params: SamplingParams
) -> None:
    penalty = np.float32(params.repetition_penalty)
    values = logits[ids]
    with np.errstate(over="ignore"):
        changed = np.where(values > 0, values / penalty, values * penalty)
    logits[ids] = np.clip(changed, -_LOGIT_LIMIT, _LOGIT_LIMIT)
