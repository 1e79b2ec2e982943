"""Attention over contexts that lie dense in memory, in two ways.

`FusedKernel` is the operator of torch: fastest, and its last bits depend on how many queries
and how much padding it is given. `ExactKernel` answers each query with the same bits in every
batch, so that what a model says does not depend on who else is served, on how prompts are cut
into chunks, or on whether a sequence was computed again after a preemption or a crash.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

# Matrix products treat rows alike if there is a multiple of so many, sums over a context add in
# the same order if it is a multiple of so many tokens (a register of AVX-512).
_ROWS_MULTIPLE = 4
_TOKENS_MULTIPLE = 16
# Tokens that one product of probabilities and values adds up. The library cuts a longer sum into
# parts, at places that depend on its length.
_SUM_TOKENS = 128
# Scores at a time: 1 MB, which stays in the caches of a CPU.
_MOST_SCORES = 1 << 18


class AttentionKernel(Protocol):
    """What `service.models` needs: contexts are padded to a multiple of `tokens_multiple`."""

    tokens_multiple: int

    def decode(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Attends S sequences with one query token each.

        query [S, kv_heads, group, D], keys and values [S, kv_heads, N, D], bias [S, 1, 1, N],
        0 or -inf; answers the shape of query.
        """
        ...

    def prefill_mask(self, queries: int, context_tokens: int, padded_tokens: int) -> Tensor | None:
        """What `prefill` is to be given for the last queries of a context."""
        ...

    def prefill(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Attends the last Q tokens of one context, each to those before it and to itself.

        query [kv_heads, group, Q, D], keys and values [kv_heads, N, D]; answers the shape of
        query.
        """
        ...


class FusedKernel:
    """torch's scaled_dot_product_attention: threads meet once, not once for each product."""

    tokens_multiple = 1

    def __init__(self, scale: float) -> None:
        """Scores are multiplied by `scale`."""
        self._scale = scale

    def decode(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(
            query, keys, values, attn_mask=bias, scale=self._scale
        )

    def prefill_mask(self, queries: int, context_tokens: int, padded_tokens: int) -> Tensor | None:
        """Bool [Q, N], true where a query sees; None: all of the context is new."""
        if context_tokens == queries:
            return None
        return torch.ones(queries, padded_tokens, dtype=torch.bool).tril_(context_tokens - queries)

    def prefill(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        kv_heads, group, _, head_dim = query.shape
        shape = (kv_heads, group, keys.shape[1], head_dim)
        return F.scaled_dot_product_attention(
            query,
            keys[:, None].expand(shape),
            values[:, None].expand(shape),
            attn_mask=mask,
            is_causal=mask is None,
            scale=self._scale,
        )


class ExactKernel:
    """Products and sums of one shape class, so that every query meets the same additions.

    The answer to a query is a function of its own numbers and of K and V up to its position;
    what lies behind it is multiplied by 0 and added last. That holds for float32 with the
    libraries that torch is built with here, and tests hold them to it: none promises it.
    """

    tokens_multiple = _TOKENS_MULTIPLE

    def __init__(self, scale: float) -> None:
        """Scores are multiplied by `scale`."""
        self._scale = scale

    def decode(self, query: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        sequences, kv_heads, group, head_dim = query.shape
        rows = _padded(group, _ROWS_MULTIPLE)
        shape = (sequences * kv_heads, -1, head_dim)
        padded = F.pad(query * self._scale, (0, 0, 0, rows - group)).view(shape)
        scores = torch.bmm(padded, keys.reshape(shape).transpose(1, 2))
        scores.view(sequences, kv_heads, rows, -1).add_(bias)
        attended = _weighted_sum(scores.softmax(-1), values.reshape(shape))
        return attended.view(sequences, kv_heads, rows, head_dim)[:, :, :group]

    def prefill_mask(self, queries: int, context_tokens: int, padded_tokens: int) -> Tensor:
        """Bool [padded Q, N], true where a query does not see; padded queries see no less."""
        rows = _padded(queries, _ROWS_MULTIPLE)
        sees = torch.ones(rows, padded_tokens, dtype=torch.bool).tril_(context_tokens - queries)
        return sees.logical_not_()

    def prefill(self, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        assert mask is not None
        kv_heads, group, queries, head_dim = query.shape
        padded = F.pad(query * self._scale, (0, 0, 0, len(mask) - queries))
        attended = torch.empty(padded.shape)
        tile = _padded(max(1, _MOST_SCORES // (kv_heads * group * keys.shape[1])), _ROWS_MULTIPLE)
        for start in range(0, len(mask), tile):
            rows = slice(start, start + tile)
            part = padded[:, :, rows].reshape(kv_heads, -1, head_dim)
            scores = torch.bmm(part, keys.transpose(1, 2))
            hidden = mask[rows]
            scores.view(kv_heads, group, *hidden.shape).masked_fill_(hidden, -math.inf)
            sums = _weighted_sum(scores.softmax(-1), values)
            attended[:, :, rows] = sums.view(kv_heads, group, -1, head_dim)
        return attended[:, :, :queries]


def _weighted_sum(weights: Tensor, values: Tensor) -> Tensor:
    """[B, M, N] times [B, N, D], the tokens added up in their order, a few at a time."""
    total = torch.bmm(weights[..., :_SUM_TOKENS], values[:, :_SUM_TOKENS])
    for start in range(_SUM_TOKENS, values.shape[1], _SUM_TOKENS):
        part = slice(start, start + _SUM_TOKENS)
        total.baddbmm_(weights[..., part], values[:, part])
    return total


def _padded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
