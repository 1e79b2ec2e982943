"""Paged attention on a CPU with plain torch operators.

One step is planned once (`CpuAttention.plan`) and then computed layer by layer. Decoding
sequences are attended in groups: the K and V of a group are gathered into one padded scratch
buffer, and the query heads that share a key head (GQA) are folded into the query length, so
that a kernel serves the whole group at once. A prefill chunk is attended alone.
The scratch is small enough for the caches of a CPU, is used again for every group and layer,
and bounds the memory of a step whatever the context.

Slots that no token was written to may hold anything, NaN included, and are never read: a
shorter sequence of a group is padded with its own first token, masked in the scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvcache.attention.kernels import AttentionKernel

# Tokens gathered at a time for decoding: 6 MB of float32 for a small model. Between 1,024 and
# 4,096 no difference was clear; on a busy machine fewer groups do better.
GROUP_TOKENS = 4096


@dataclass(frozen=True, slots=True)
class Gather:
    """Where the contexts of one or more sequences lie, padded to the longest or further."""

    rows: Tensor  # int64 [2 * sequences * tokens], rows of the first layer: all K, then all V
    sequences: int
    tokens: int  # per sequence


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one query token each."""

    query_rows: Tensor | slice  # flat tokens; a slice, which copies nothing, where it can be
    gather: Gather
    score_bias: Tensor  # float32 [sequences, 1, 1, tokens], -inf behind the context


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One sequence with several query tokens, the last ones of its context."""

    query_start: int
    query_end: int
    gather: Gather
    mask: Tensor | None  # of the kernel


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All of a step that is the same for every layer."""

    write_rows: Tensor  # int64 [2T], rows of the first layer for K and V of each token
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillChunk, ...]


class CpuAttention:
    """The pool of one model, and attention over it. Not thread-safe: the scratch is shared."""

    def __init__(self, pool: Tensor, kernel: AttentionKernel) -> None:
        """`pool` is [blocks, layers, 2, block_tokens, kv_heads, head_dim], contiguous."""
        self._pool_dtype = pool.dtype
        _, self._layers, _, self._block_tokens, self._kv_heads, self._head_dim = pool.shape
        slot_rows = pool.view(-1, self._kv_heads * self._head_dim)
        # A row of the first layer means the same slot and K or V in each of these views.
        self._layer_rows = [slot_rows[2 * self._block_tokens * i :] for i in range(self._layers)]
        self._kernel = kernel
        self._gathered = torch.empty(0, dtype=pool.dtype)
        self._scratch = torch.empty(0, dtype=torch.float32)

    def plan(
        self,
        slots: NDArray[np.int64],
        query_starts: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> AttentionPlan:
        """Prepares a step of S sequences with T query tokens in all, packed without padding.

        Sequence s has the flat tokens `query_starts[s]` to `query_starts[s + 1]`, [S + 1], the
        last ones of its context. `slots`, [T], are block * block_tokens + offset: where K and V
        of each token go. `context_lens`, [S], counts the tokens attended to, those of this step
        included; `block_tables`, [S, W], is padded with the null block 0.
        """
        query_lens = np.diff(query_starts)
        decoding = np.flatnonzero(query_lens == 1)
        decoding = decoding[np.argsort(context_lens[decoding], kind="stable")]
        return AttentionPlan(
            write_rows=self._write_rows(slots),
            decode=tuple(
                self._decode_group(members, query_starts, context_lens, block_tables)
                for members in self._groups(decoding, context_lens)
            ),
            prefill=tuple(
                self._prefill_chunk(
                    int(query_starts[s]), int(query_starts[s + 1]), context_lens, block_tables, s
                )
                for s in np.flatnonzero(query_lens > 1).tolist()
            ),
        )

    def write(self, plan: AttentionPlan, layer: int, kv: Tensor) -> None:
        """Stores K and V, [T, 2 * kv_heads, head_dim], in the slots of the step's tokens."""
        rows = self._layer_rows[layer]
        values = kv.to(rows.dtype).reshape(len(plan.write_rows), rows.shape[1])
        rows.index_copy_(0, plan.write_rows, values)

    def attend(self, plan: AttentionPlan, layer: int, query: Tensor) -> Tensor:
        """Answers float32 [T, heads, head_dim] for one layer's queries of that shape and type."""
        output = torch.empty(query.shape, dtype=torch.float32)
        for group in plan.decode:
            output[group.query_rows] = self._decode(group, layer, query[group.query_rows])
        for chunk in plan.prefill:
            rows = slice(chunk.query_start, chunk.query_end)
            output[rows] = self._prefill(chunk, layer, query[rows])
        return output

    # --- planning ------------------------------------------------------------

    def _key_rows(self, block: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of K in the first layer; those of V are `block_tokens` further."""
        return block * (self._layers * 2 * self._block_tokens) + offset

    def _write_rows(self, slots: NDArray[np.int64]) -> Tensor:
        key_rows = self._key_rows(*np.divmod(slots, self._block_tokens))
        return torch.from_numpy(np.stack([key_rows, key_rows + self._block_tokens], 1).ravel())

    def _groups(
        self, decoding: NDArray[np.int64], context_lens: NDArray[np.int32]
    ) -> list[NDArray[np.int64]]:
        """Cuts sequences, sorted by context, so that each padded group fits the scratch."""
        groups = []
        start = 0
        for end in range(1, len(decoding) + 1):
            is_last = end == len(decoding)
            if is_last or (end + 1 - start) * context_lens[decoding[end]] > GROUP_TOKENS:
                groups.append(decoding[start:end])
                start = end
        return groups

    def _decode_group(
        self,
        members: NDArray[np.int64],
        query_starts: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> DecodeGroup:
        gather = self._gather(members, context_lens, block_tables)
        behind = np.arange(gather.tokens) >= context_lens[members, None]
        bias = np.where(behind, np.float32(-np.inf), np.float32(0.0))[:, None, None]
        return DecodeGroup(_rows(query_starts[members]), gather, torch.from_numpy(bias))

    def _prefill_chunk(
        self,
        query_start: int,
        query_end: int,
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        sequence: int,
    ) -> PrefillChunk:
        gather = self._gather(np.array([sequence]), context_lens, block_tables)
        mask = self._kernel.prefill_mask(
            query_end - query_start, int(context_lens[sequence]), gather.tokens
        )
        return PrefillChunk(query_start, query_end, gather, mask)

    def _gather(
        self,
        members: NDArray[np.int64],
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> Gather:
        contexts = context_lens[members, None]
        multiple = self._kernel.tokens_multiple
        tokens = -(-int(contexts.max()) // multiple) * multiple
        places = np.arange(tokens)
        block, offset = np.divmod(np.where(places < contexts, places, 0), self._block_tokens)
        key_rows = self._key_rows(block_tables[members[:, None], block].astype(np.int64), offset)
        rows = np.concatenate([key_rows, key_rows + self._block_tokens], axis=None)
        return Gather(torch.from_numpy(rows), len(members), tokens)

    # --- computing -----------------------------------------------------------

    def _decode(self, group: DecodeGroup, layer: int, query: Tensor) -> Tensor:
        keys, values = self._load(group.gather, layer)
        sequences, heads, _ = query.shape
        output = self._kernel.decode(
            query.view(sequences, self._kv_heads, -1, self._head_dim),
            keys,
            values,
            group.score_bias,
        )
        return output.reshape(sequences, heads, self._head_dim)

    def _prefill(self, chunk: PrefillChunk, layer: int, query: Tensor) -> Tensor:
        keys, values = self._load(chunk.gather, layer)
        queries, heads, _ = query.shape
        output = self._kernel.prefill(
            query.view(queries, self._kv_heads, -1, self._head_dim).permute(1, 2, 0, 3),
            keys[0],
            values[0],
            chunk.mask,
        )
        return output.permute(2, 0, 1, 3).reshape(queries, heads, self._head_dim)

    def _load(self, gather: Gather, layer: int) -> tuple[Tensor, Tensor]:
        """Copies contexts into the scratch: K and V, [sequences, kv_heads, tokens, head_dim]."""
        width = self._kv_heads * self._head_dim
        size = len(gather.rows) * width
        if size > len(self._scratch):
            self._gathered = torch.empty(size, dtype=self._pool_dtype)
            self._scratch = torch.empty(size, dtype=torch.float32)
        gathered = self._gathered[:size]
        rows = self._layer_rows[layer]
        torch.index_select(rows, 0, gather.rows, out=gathered.view(len(gather.rows), width))
        source = gathered.view(2, gather.sequences, gather.tokens, self._kv_heads, self._head_dim)
        loaded = self._scratch[:size].view(
            2, gather.sequences, self._kv_heads, gather.tokens, self._head_dim
        )
        loaded.copy_(source.transpose(2, 3))
        keys, values = loaded.unbind(0)
        return keys, values


def _rows(rows: NDArray[np.int32]) -> Tensor | slice:
    first, count = int(rows[0]), len(rows)
    if np.array_equal(rows, np.arange(first, first + count)):
        return slice(first, first + count)
    return torch.from_numpy(rows.astype(np.int64))
