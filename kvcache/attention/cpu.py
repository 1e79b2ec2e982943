"""Paged attention on a CPU with plain torch operators.

One step is planned once (`CpuAttention.plan`) and then computed layer by layer. Decoding
sequences are attended in groups: the blocks of a group are gathered into one padded scratch
buffer, and the query heads that share a key head (GQA) are folded into the query length, so
that two batched matrix products serve the whole group. A prefill chunk is attended alone.
The scratch is small enough for the caches of a CPU, is used again for every group and layer,
and bounds the memory of a step whatever the context.

Slots that no token was written to may hold anything, NaN included: they are set to zero in
the scratch before any arithmetic, and masked in the scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

# Tokens gathered at a time for decoding. Measured best of 1,024 to 8,192 on a CPU with
# 1 MiB of L2 per core: 2,048 tokens of a small model are 3 MB of float32.
GROUP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class Gather:
    """The blocks of one or more sequences, padded to a common number of blocks."""

    block_ids: Tensor  # int64 [sequences * blocks]
    unwritten_rows: Tensor  # int64, rows (sequence, block, K|V, slot) to set to zero
    sequences: int
    blocks: int  # per sequence


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences with one query token each."""

    query_rows: Tensor  # int64 [sequences], flat tokens
    gather: Gather
    score_bias: Tensor | None  # [sequences, 1, 1, tokens], -inf behind the context


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """One sequence with several query tokens, the last ones of its context."""

    query_start: int
    query_end: int
    context_tokens: int
    gather: Gather
    mask: Tensor | None  # bool [queries, context], None: all queries see all, causally


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """All of a step that is the same for every layer."""

    write_rows: Tensor  # int64 [2T], rows of the first layer for K and V of each token
    decode: tuple[DecodeGroup, ...]
    prefill: tuple[PrefillChunk, ...]


class CpuAttention:
    """The pool of one model, and attention over it. Not thread-safe: the scratch is shared."""

    def __init__(self, pool: Tensor, scale: float) -> None:
        """`pool` is [blocks, layers, 2, block_tokens, kv_heads, head_dim], contiguous.

        Scores are multiplied by `scale`, 1 / sqrt(head_dim) for the Llama family.
        """
        self._pool = pool
        _, self._layers, _, self._block_tokens, self._kv_heads, self._head_dim = pool.shape
        self._slot_rows = pool.view(-1, self._kv_heads * self._head_dim)
        self._scale = scale
        self._gathered = torch.empty(0, dtype=pool.dtype)
        self._scratch = torch.empty(0, dtype=torch.float32)

    def plan(
        self,
        slots: NDArray[np.int64],
        query_starts: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> AttentionPlan:
        """Prepares a step; the arguments are those of `service.engine.runner.StepBatch`."""
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
        """Stores K and V, [T, 2, kv_heads, head_dim], in the slots of the step's tokens."""
        rows = plan.write_rows + layer * 2 * self._block_tokens
        values = kv.reshape(len(rows), self._slot_rows.shape[1]).to(self._slot_rows.dtype)
        self._slot_rows.index_copy_(0, rows, values)

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

    def _write_rows(self, slots: NDArray[np.int64]) -> Tensor:
        block, offset = np.divmod(slots, self._block_tokens)
        key_rows = block * (self._layers * 2 * self._block_tokens) + offset
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
        gather, unwritten = self._gather(members, context_lens, block_tables)
        bias = None
        if len(gather.unwritten_rows):
            bias = torch.zeros(unwritten.shape, dtype=torch.float32)
            bias.masked_fill_(torch.from_numpy(unwritten), -math.inf)
            bias = bias[:, None, None]
        rows = torch.from_numpy(query_starts[members].astype(np.int64))
        return DecodeGroup(rows, gather, bias)

    def _prefill_chunk(
        self,
        query_start: int,
        query_end: int,
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        sequence: int,
    ) -> PrefillChunk:
        context = int(context_lens[sequence])
        gather, _ = self._gather(np.array([sequence]), context_lens, block_tables)
        queries = query_end - query_start
        mask = None
        if context > queries:
            mask = torch.ones(queries, context, dtype=torch.bool).tril_(context - queries)
        return PrefillChunk(query_start, query_end, context, gather, mask)

    def _gather(
        self,
        members: NDArray[np.int64],
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
    ) -> tuple[Gather, NDArray[np.bool_]]:
        """The blocks of these sequences, and which of their slots [sequences, tokens] are not."""
        contexts = context_lens[members]
        blocks = -(-int(contexts.max()) // self._block_tokens)
        tokens = np.arange(blocks * self._block_tokens)
        unwritten = tokens >= contexts[:, None]
        sequence, token = np.nonzero(unwritten)
        block, slot = np.divmod(token, self._block_tokens)
        key_rows = (sequence * blocks + block) * 2 * self._block_tokens + slot
        gather = Gather(
            block_ids=torch.from_numpy(block_tables[members, :blocks].astype(np.int64).ravel()),
            unwritten_rows=torch.from_numpy(
                np.concatenate([key_rows, key_rows + self._block_tokens])
            ),
            sequences=len(members),
            blocks=blocks,
        )
        return gather, unwritten

    # --- computing -----------------------------------------------------------

    def _decode(self, group: DecodeGroup, layer: int, query: Tensor) -> Tensor:
        keys, values = self._load(group.gather, layer)
        sequences, heads, _ = query.shape
        tokens = keys.shape[-2]
        folded = (query * self._scale).view(sequences * self._kv_heads, -1, self._head_dim)
        keys = keys.view(sequences * self._kv_heads, tokens, self._head_dim)
        values = values.view(sequences * self._kv_heads, tokens, self._head_dim)
        scores = torch.bmm(folded, keys.transpose(1, 2))
        if group.score_bias is not None:
            scores.view(sequences, self._kv_heads, -1, tokens).add_(group.score_bias)
        output = torch.bmm(torch.softmax(scores, dim=-1), values)
        return output.view(sequences, heads, self._head_dim)

    def _prefill(self, chunk: PrefillChunk, layer: int, query: Tensor) -> Tensor:
        keys, values = self._load(chunk.gather, layer)
        queries, heads, _ = query.shape
        group = heads // self._kv_heads
        shape = (self._kv_heads, group, chunk.context_tokens, self._head_dim)
        output = F.scaled_dot_product_attention(
            query.view(queries, self._kv_heads, group, self._head_dim).permute(1, 2, 0, 3),
            keys[0, :, None, : chunk.context_tokens].expand(shape),
            values[0, :, None, : chunk.context_tokens].expand(shape),
            attn_mask=chunk.mask,
            is_causal=chunk.mask is None,
            scale=self._scale,
        )
        return output.permute(2, 0, 1, 3).reshape(queries, heads, self._head_dim)

    def _load(self, gather: Gather, layer: int) -> tuple[Tensor, Tensor]:
        """Copies blocks into the scratch: K and V, [sequences, kv_heads, tokens, head_dim]."""
        shape = (gather.sequences, gather.blocks, 2, self._block_tokens)
        size = math.prod(shape) * self._kv_heads * self._head_dim
        if size > len(self._scratch):
            self._gathered = torch.empty(size, dtype=self._pool.dtype)
            self._scratch = torch.empty(size, dtype=torch.float32)
        gathered = self._gathered[:size].view(-1, *self._pool.shape[2:])
        torch.index_select(self._pool[:, layer], 0, gather.block_ids, out=gathered)
        if len(gather.unwritten_rows):
            rows = gathered.view(-1, self._kv_heads * self._head_dim)
            rows.index_fill_(0, gather.unwritten_rows, 0.0)
        loaded = self._scratch[:size].view(
            2, gather.sequences, self._kv_heads, gather.blocks, self._block_tokens, self._head_dim
        )
        source = gathered.view(*shape, self._kv_heads, self._head_dim)
        loaded.copy_(source.permute(2, 0, 4, 1, 3, 5))
        keys, values = loaded.flatten(3, 4).unbind(0)
        return keys, values
