"""What a step of the engine costs, learned from the steps as they come."""

from __future__ import annotations

from dataclasses import dataclass

_WEIGHT = 0.2  # of the newest step among those of its kind
_MAX_RATIO = 3.0  # to the mean of its kind: a step that was held up says no more than that
_MAX_NEW_RATIO = 10.0  # to what is expected of the first of its kind
# No step takes less, but a coarse clock may say so, and a relative error needs a time.
_LEAST_SECONDS = 1e-6
_HALF_LIFE_SECONDS = 10.0  # of computing, after which a kind of batch that is not seen counts half
_STALE_WEIGHT = 1e-3  # of what is old: enough where nothing newer tells
# Of a cost as large as a step, divided by the square of the batch it would be found in: what no
# batch tells is left at nothing.
_RIDGE = 1e-4
_ROUNDS = 40


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


@dataclass(slots=True)
class _Kind:
    """Steps of about the same batch, as moving averages."""

    sequences: float
    prefill_tokens: float
    seconds: float
    noted_seconds: float  # of computing, when the last one came

    def note(self, sequences: float, prefill_tokens: float, seconds: float) -> None:
        seconds = min(seconds, _MAX_RATIO * self.seconds)
        self.sequences += _WEIGHT * (sequences - self.sequences)
        self.prefill_tokens += _WEIGHT * (prefill_tokens - self.prefill_tokens)
        self.seconds += _WEIGHT * (seconds - self.seconds)


class StepCosts:
    """Explains the mean times of steps, by size of the batch, with three costs.

    Steps of equal batches tell the sum of the costs only. Means of other batches are kept, and
    count where nothing newer tells; what no batch has told is taken to cost nothing. So a
    forecast for a batch that is larger than any so far errs on the side of admission.
    """

    def __init__(self) -> None:
        self._kinds: dict[tuple[int, int], _Kind] = {}  # by magnitude of both sizes
        self._computed_seconds = 0.0
        self._costs: Costs | None = None  # None: to be found again

    @property
    def costs(self) -> Costs | None:
        """None before the first step."""
        if self._costs is None and self._kinds:
            self._costs = self._fit()
        return self._costs

    def note(self, sequences: float, prefill_tokens: float, seconds: float) -> None:
        """A step took so long. It had sequences that decoded, or tokens of prompts, or both."""
        seconds = max(seconds, _LEAST_SECONDS)
        self._computed_seconds += seconds
        key = _magnitude(sequences), _magnitude(prefill_tokens)
        kind = self._kinds.get(key)
        if kind is None:
            if (costs := self.costs) is not None:
                expected_seconds = costs.step_seconds(sequences, prefill_tokens)
                if expected_seconds > 0:  # else no batch has told anything of one like this
                    seconds = min(seconds, _MAX_NEW_RATIO * expected_seconds)
            self._kinds[key] = _Kind(sequences, prefill_tokens, seconds, self._computed_seconds)
        else:
            kind.note(sequences, prefill_tokens, seconds)
            kind.noted_seconds = self._computed_seconds
        self._costs = None

    def _fit(self) -> Costs:
        """Least squares of relative errors with costs of 0 or more, by coordinate descent."""
        products = [[0.0] * 3 for _ in range(3)]
        targets = [0.0] * 3
        for kind in self._kinds.values():
            # Divided by the time: a relative error counts the same for short and long steps.
            row = [x / kind.seconds for x in (1.0, kind.sequences, kind.prefill_tokens)]
            age = (self._computed_seconds - kind.noted_seconds) / _HALF_LIFE_SECONDS
            weight = max(_STALE_WEIGHT, 0.5 ** min(age, 64.0))
            for i in range(3):
                targets[i] += weight * row[i]
                for j in range(3):
                    products[i][j] += weight * row[i] * row[j]
        for i in (1, 2):
            products[i][i] += _RIDGE * products[0][0]
        costs = [0.0] * 3
        for _ in range(_ROUNDS):
            for i in range(3):
                others = sum(products[i][j] * costs[j] for j in range(3) if j != i)
                costs[i] = max(0.0, (targets[i] - others) / products[i][i])
        return Costs(*costs)


def _magnitude(size: float) -> int:
    return round(size).bit_length()
