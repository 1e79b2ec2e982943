"""Top-k, top-p and min-p over one row, without sorting the vocabulary.

Candidates are ordered by (logit descending, token id ascending), so that ties are decided
the same way everywhere and top-k 1 is exactly greedy. Only the head of that order is ever
sorted; it is extended until it provably holds every token that survives.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_FIRST_HEAD = 256
_HEAD_GROWTH = 8


def top_ids(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """The ids of the `count` largest logits [V], largest first, ties by lower id."""
    vocab_size = len(logits)
    if count >= vocab_size:
        ids = np.arange(vocab_size)
    else:
        threshold = np.partition(logits, vocab_size - count)[vocab_size - count]
        ids = np.flatnonzero(logits >= threshold)
    # Ids ascend, so a stable sort leaves ties in id order; extra ties are cut off.
    order = np.argsort(-logits[ids], kind="stable")
    return ids[order[:count]]


def surviving_ids(
    scaled: NDArray[np.float32],
    weights: NDArray[np.float32],
    top_k: int,
    top_p: float,
    min_p: float,
) -> NDArray[np.intp]:
    """The ids that the truncations leave, most likely first; never empty.

    Order: top-k, then top-p over what top-k left, then min-p (relative to the most likely
    token, so its place does not matter).

    Args:
        scaled: [V] logits after temperature, their maximum subtracted.
        weights: [V] exp(scaled).
        top_k: 0 keeps all.
        top_p: smallest head whose share of the weight reaches it; 1 keeps all (Holtzman
            et al., "The Curious Case of Neural Text Degeneration", 2020).
        min_p: least weight relative to the largest (Nguyen et al., "Min-p", 2024).
    """
    vocab_size = len(scaled)
    limit = vocab_size if top_k == 0 else min(top_k, vocab_size)
    least = math.log(min_p) if min_p > 0 else -math.inf
    if top_p < 1.0:
        ids = _nucleus(scaled, weights, limit, top_p)
    elif limit < vocab_size:
        ids = top_ids(scaled, limit)
    else:
        ids = top_ids(scaled, int(np.count_nonzero(scaled >= least)))
    return ids[scaled[ids] >= least]


def _nucleus(
    scaled: NDArray[np.float32], weights: NDArray[np.float32], limit: int, top_p: float
) -> NDArray[np.intp]:
    total = float(weights.sum(dtype=np.float64)) if limit == len(scaled) else None
    head = min(_FIRST_HEAD, limit) if total is not None else limit
    while True:
        ids = top_ids(scaled, head)
        cumulative = weights[ids].cumsum(dtype=np.float64)
        target = top_p * (cumulative[-1] if total is None else total)
        if cumulative[-1] >= target or head == limit:
            keep = int(np.searchsorted(cumulative, target, side="left")) + 1
            return ids[:keep]
        head = min(head * _HEAD_GROWTH, limit)
