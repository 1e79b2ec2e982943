"""What a step of the engine costs, learned from the steps as they come."""

from __future__ import annotations

import math
from dataclasses import dataclass

# Variance of a cost before anything is known, as a share of the first step: that of a sequence
# or of a prefill token is small, so that little is said about batches never seen.
_PRIOR_SHARES = (1.0, 0.1, 0.1)
_STEP_NOISE_SHARE = 0.25  # of a step's time: what its batch does not explain
_DRIFT_SHARE = 0.1  # of a step's time, in a second: the machine gets slower or faster
_MAX_SURPRISE = 2.0  # of the expected time, where batches like it are known


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of a step: `base`, and more for each token of its batch."""

    base_seconds: float
    sequence_seconds: float  # for each token that it decodes
    prefill_seconds: float  # for each token of a prompt

    def step_seconds(self, sequences: float, prefill_tokens: float = 0.0) -> float:
        """A step that decodes so many sequences and computes so much of prompts."""
        return (
            self.base_seconds
            + self.sequence_seconds * sequences
            + self.prefill_seconds * prefill_tokens
        )


class StepCosts:
    """Follows the three costs with a Kalman filter.

    Steps of equal batches tell the sum of the costs only. What they say nothing about stays
    as it was learned from other batches, or at nothing: so a forecast for a batch that is
    larger than any so far errs on the side of admission.
    """

    def __init__(self) -> None:
        self._costs = [0.0, 0.0, 0.0]
        self._covariance = [[0.0] * 3 for _ in range(3)]
        self._is_known = False

    @property
    def costs(self) -> Costs | None:
        """None before the first step."""
        return Costs(*self._costs) if self._is_known else None

    def note(self, sequences: float, prefill_tokens: float, seconds: float) -> None:
        """A step took so long. It had sequences that decoded, or tokens of prompts, or both."""
        batch = (1.0, float(sequences), float(prefill_tokens))
        if not self._is_known:
            self._is_known = True
            for i, share in enumerate(_PRIOR_SHARES):
                self._covariance[i][i] = (share * seconds) ** 2
        self._correct(batch, seconds)

    def _correct(self, batch: tuple[float, float, float], seconds: float) -> None:
        expected = sum(c * x for c, x in zip(self._costs, batch, strict=True))
        spread = [sum(row[j] * batch[j] for j in range(3)) for row in self._covariance]
        known = sum(x * s for x, s in zip(batch, spread, strict=True))
        if known <= 0.0:
            return
        # A step that was held up says no more than that.
        seconds = min(seconds, expected + max(_MAX_SURPRISE * expected, 3 * math.sqrt(known)))
        scale = max(expected, seconds)
        # As time goes by the time of such a step becomes uncertain again, and with it the costs
        # in the proportion in which they can explain it, and in no other.
        doubt = known + (_DRIFT_SHARE * scale) ** 2 * seconds
        variance = doubt + (_STEP_NOISE_SHARE * scale) ** 2
        correction = doubt / variance * (seconds - expected)
        for i in range(3):
            self._costs[i] = max(0.0, self._costs[i] + spread[i] / known * correction)
        # The same correction of the covariance, after the doubt has been added to it.
        change = (doubt - doubt * doubt / variance - known) / (known * known)
        for i in range(3):
            for j in range(3):
                self._covariance[i][j] += spread[i] * spread[j] * change
