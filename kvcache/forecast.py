"""When the blocks of a pool will run out, from what its sequences are expected to need.

Pure arithmetic over arrays, one element per sequence: cheap enough to be asked ten times a
second for thousands of sequences of a hundred thousand tokens.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from kvcache.errors import InvalidArgumentError
from kvcache.pressure import FOREVER_SECONDS, clamp_seconds

Tokens = NDArray[np.int64]

_ROUNDING_BLOCKS = 1e-6  # shares of blocks do not sum to whole ones
_GOLDEN_RATIO = 0.618_033_988_75  # its multiples, modulo 1, spread evenly whatever their number


def forecast_exhaustion(
    num_tokens: Tokens,
    remaining_tokens: Tokens,
    *,
    held_blocks: int,
    available_blocks: int,
    block_tokens: int,
    steps_per_second: float,
) -> float:
    """Seconds until a growing sequence finds no block, at most FOREVER_SECONDS.

    Every sequence gets a token in every step until its expected end; then its blocks are
    available again. Nobody is admitted meanwhile.

    Args:
        num_tokens: of each sequence, those that have a slot.
        remaining_tokens: of each, those still to come, see `OutputLengths`.
        held_blocks: of all together. Where that is less than their tokens need, blocks are
            shared, and each holder brings back its part.
        available_blocks: free ones, and those that can be evicted.
        block_tokens: tokens of one block.
        steps_per_second: as measured; 0 when nothing was: then no end is in sight.
    """
    if block_tokens < 1:
        raise InvalidArgumentError("block_tokens", block_tokens, "at least 1")
    if not len(num_tokens) or not steps_per_second > 0.0:
        return FOREVER_SECONDS
    steps = max(1, int(remaining_tokens.max()))
    needed = _needed_blocks(num_tokens, remaining_tokens, held_blocks, block_tokens, steps)
    short = needed > max(0, available_blocks) + _ROUNDING_BLOCKS
    if not short.any():
        return FOREVER_SECONDS
    return clamp_seconds((int(short.argmax()) + 1) / steps_per_second)


def _needed_blocks(
    num_tokens: Tokens,
    remaining_tokens: Tokens,
    held_blocks: int,
    block_tokens: int,
    steps: int,
) -> NDArray[np.float64]:
    """Blocks in use beyond those of now, after each of the next `steps` steps."""
    # A sequence takes a block in the step `first`, and in each `block_tokens` steps later until
    # its end: +1 there, and -1 where it would take the first one that it needs no more. Summed
    # along the steps of equal phase, that is how many blocks each step takes.
    first = 1 + (-num_tokens) % block_tokens
    grown = np.maximum(0, remaining_tokens - first + block_tokens) // block_tokens
    rounds = steps // block_tokens + 3
    takers = np.zeros(rounds * block_tokens, np.int64)
    np.add.at(takers, first, 1)
    np.add.at(takers, first + grown * block_tokens, -1)
    taken = takers.reshape(rounds, block_tokens).cumsum(axis=0).ravel()[1 : steps + 1]

    present_blocks = -(-num_tokens // block_tokens)
    own_share = min(1.0, held_blocks / max(1, int(present_blocks.sum())))
    returned = np.zeros(steps + 2)
    np.add.at(returned, remaining_tokens + 1, own_share * present_blocks + grown)
    return (taken - returned[1 : steps + 1]).cumsum()


class OutputLengths:
    """How long outputs are here, learned from those that have ended.

    An output that was cut, by its limit or by its client, tells only that it would have been
    longer. So the chance to reach a length is estimated as in Kaplan and Meier, Nonparametric
    Estimation from Incomplete Observations (1958).
    """

    def __init__(self, memory: int = 512) -> None:
        """The newest `memory` outputs count."""
        if memory < 1:
            raise InvalidArgumentError("memory", memory, "at least 1")
        self._seen: deque[tuple[int, bool]] = deque(maxlen=memory)
        self._curve: _Survival | None = None

    def add(self, output_tokens: int, *, ended_by_itself: bool) -> None:
        """Takes note of an output that is over; not `ended_by_itself`: it was cut."""
        self._seen.append((output_tokens, ended_by_itself))
        self._curve = None

    def likely_remaining(
        self, sequence_ids: Tokens, output_tokens: Tokens, limit_tokens: Tokens
    ) -> Tokens:
        """Tokens that are still to come, for outputs as long as `output_tokens`.

        Each sequence gets another quantile of the lengths beyond its own, the same one all its
        life: their mean for all would have them end together, and bring back their blocks
        together. All that is left to `limit_tokens` where nothing longer was seen; at least one
        while something is left.
        """
        left = np.maximum(0, limit_tokens - output_tokens)
        if self._curve is None:
            self._curve = _Survival(self._seen)
        quantiles = np.mod(sequence_ids * _GOLDEN_RATIO + 0.5, 1.0)
        ends = self._curve.ends(output_tokens, quantiles, otherwise=output_tokens + left)
        remaining: Tokens = np.minimum(left, np.maximum(1, ends - output_tokens))
        return remaining


class _Survival:
    """The share of outputs that are longer than a length: a step function."""

    def __init__(self, seen: deque[tuple[int, bool]]) -> None:
        lengths = np.sort(np.array([length for length, _ in seen], np.int64))
        ended = np.array([length for length, by_itself in seen if by_itself], np.int64)
        self._ends, ending = np.unique(ended, return_counts=True)
        at_risk = len(lengths) - np.searchsorted(lengths, self._ends, side="left")
        self._shares = np.cumprod(1.0 - ending / at_risk)  # longer than each of the ends

    def ends(self, start: Tokens, quantiles: NDArray[np.float64], otherwise: Tokens) -> Tokens:
        """For each, the length up to which a share of those longer than `start` have ended."""
        longer_than_all = np.concatenate([[1.0], self._shares])
        longer = longer_than_all[np.searchsorted(self._ends, start, side="right")]
        index = np.searchsorted(-self._shares, -longer * (1.0 - quantiles), side="left")
        known = (longer > 0.0) & (index < len(self._ends))
        ends: Tokens = np.where(known, np.append(self._ends, 0)[index], otherwise)
        return ends
