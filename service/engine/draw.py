"""Draws an index in proportion to weights, by halving.

One random number decides between the lower and the upper half of the indices, the next one
between the halves of that half, and so on. Inverting the cumulative weights with a single
number would be simpler, and fragile: logits are not the same to the last bit in another
batch, after a preemption or in a new engine, and in 50,000 cumulative weights there is
nearly always an edge so close to the number that this matters (measured: once in 700
tokens). Here a decision turns only if its own share was that close, a few dozen times more
rarely, so that a stream that is computed again says the same.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_BLOCK_LEVELS = 8
_BLOCK = 1 << _BLOCK_LEVELS


def levels(size: int) -> int:
    """How many random numbers it takes to draw one of `size` indices."""
    return max(_BLOCK_LEVELS, (size - 1).bit_length())


def draw(weights: NDArray[np.float32], numbers: Sequence[float]) -> int:
    """The index that the numbers choose; its weight is not 0.

    Args:
        weights: [V], none negative, at least one positive.
        numbers: `levels(V)` numbers in [0, 1).
    """
    upper = len(numbers) - _BLOCK_LEVELS
    starts = np.arange(0, len(weights), _BLOCK)
    sums = np.add.reduceat(weights.astype(np.float64), starts)
    start = _descend(sums, numbers[:upper]) * _BLOCK
    return start + _descend(weights[start : start + _BLOCK], numbers[upper:])


def _descend(weights: NDArray[np.float32] | NDArray[np.float64], numbers: Sequence[float]) -> int:
    ends = [0.0, *weights.cumsum(dtype=np.float64).tolist()]
    last = len(weights)
    low, width = 0, 1 << len(numbers)
    for number in numbers:
        width //= 2
        lower = ends[min(low + width, last)] - ends[low]
        both = ends[min(low + 2 * width, last)] - ends[low]
        if lower < both and number * both >= lower:
            low += width
    return low
