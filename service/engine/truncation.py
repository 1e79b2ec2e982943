"""Top-k, top-p and min-p over one row, without sorting the vocabulary when a part will do.

Tokens rank by (value descending, token id ascending), so that ties are decided the same way
everywhere and top-k 1 is exactly greedy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_HEAD = 256  # the nucleus of a language model is usually smaller


def largest_ids(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The ids of the `count` first-ranking values [V], in ascending order."""
    if count >= len(values):
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > least)
    ties = np.flatnonzero(values == least)[: count - len(above)]
    return np.sort(np.concatenate([above, ties]))


def top_ids(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The ids of the `count` first-ranking values [V], first rank first."""
    ids = largest_ids(values, count)
    return ids[np.argsort(-values[ids], kind="stable")]


def surviving_ids(
    weights: NDArray[np.float32], top_k: int, top_p: float, min_p: float
) -> NDArray[np.intp]:
    """The ids that the truncations leave, in ascending order; never empty.

    Order: top-k, then top-p over what top-k left, then min-p (relative to the most likely
    token, so its place does not matter).

    Args:
        weights: [V], in proportion to the probabilities.
        top_k: how many tokens may stay; 0 keeps all.
        top_p: the smallest head whose share of the weight reaches it stays; 1 keeps all
            (Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020).
        min_p: least weight relative to the largest (Nguyen et al., "Min-p", 2024).
    """
    count = len(weights) if top_k == 0 else min(top_k, len(weights))
    if top_p < 1.0:
        count = _nucleus_size(weights, count, top_p)
    ids = largest_ids(weights, count)
    enough: NDArray[np.bool_] = weights[ids] >= np.float32(min_p) * weights.max()
    return ids[enough]


def _nucleus_size(weights: NDArray[np.float32], limit: int, top_p: float) -> int:
    """How many of the `limit` largest weights reach the share `top_p` of their sum."""
    if limit < len(weights):
        cumulative = _largest(weights, limit).cumsum(dtype=np.float64)
        target = top_p * cumulative[-1]
    else:
        target = top_p * weights.sum(dtype=np.float64)
        cumulative = _largest(weights, min(_HEAD, limit)).cumsum(dtype=np.float64)
        if cumulative[-1] < target:
            cumulative = _largest(weights, limit).cumsum(dtype=np.float64)
    return min(limit, int(np.searchsorted(cumulative, target, side="left")) + 1)


def _largest(weights: NDArray[np.float32], count: int) -> NDArray[np.float32]:
    """The `count` largest weights, largest first."""
    rest = len(weights) - count
    head = np.partition(weights, rest)[rest:] if rest else weights
    return np.sort(head)[::-1]
