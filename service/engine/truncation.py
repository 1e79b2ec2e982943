"""Top-k, top-p and min-p over one row, without sorting the vocabulary when a part will do.

Tokens rank by (value descending, token id ascending), so that ties are decided the same way
everywhere and top-k 1 is exactly greedy.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDING = 0.999  # keeps what rounding alone would leave out


def largest_ids(values: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The ids of the `count` first-ranking values [V], in ascending order."""
    if count >= len(values):
        return np.arange(len(values))
    least = np.partition(values, len(values) - count)[len(values) - count]
    return _ids_from(values, least, count)


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
        head = _nucleus(weights, count, top_p)
        ids = _ids_from(weights, head[-1], len(head))
    else:
        ids = largest_ids(weights, count)
    enough: NDArray[np.bool_] = weights[ids] >= np.float32(min_p) * weights.max()
    return ids[enough]


def _nucleus(weights: NDArray[np.float32], limit: int, top_p: float) -> NDArray[np.float32]:
    """The first of the `limit` largest weights that reach the share `top_p` of their sum.

    Only a part of them is sorted. All weights from w downwards come to limit * w at most; if
    that is less than the share 1 - top_p, the weights above w have reached `top_p` without
    them. So no weight below total * (1 - top_p) / limit counts.
    """
    rest = len(weights) - limit
    head = np.partition(weights, rest)[rest:] if rest else weights
    total = head.sum(dtype=np.float64)
    least = total * (1.0 - top_p) / limit * _ROUNDING
    ranked = np.sort(head[head >= least])[::-1]
    cumulative = ranked.cumsum(dtype=np.float64)
    count = int(np.searchsorted(cumulative, top_p * total, side="left")) + 1
    return ranked[:count]


def _ids_from(values: NDArray[np.float32], least: np.float32, count: int) -> NDArray[np.intp]:
    """The ids of the `count` first-ranking values, the last of which is `least`, ascending."""
    ids = np.flatnonzero(values >= least)
    surplus = len(ids) - count
    if surplus:
        ties = np.flatnonzero(values[ids] == least)
        ids = np.delete(ids, ties[len(ties) - surplus :])
    return ids
