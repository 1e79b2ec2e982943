"""Packs the chunks of a step into the arrays that a runner takes."""

from __future__ import annotations

from collections.abc import Sequence as Chunks

import numpy as np
from numpy.typing import NDArray

from kvcache import CacheManager
from service.engine.policy import Chunk
from service.engine.runner import StepBatch


def build_batch(chunks: Chunks[Chunk], manager: CacheManager, block_tokens: int) -> StepBatch:
    """One varlen batch without padding; work per chunk, not per token, outside numpy.

    Logit rows come chunk by chunk: first the positions of its prompt logprobs, then its
    last token if the next one is to be chosen.
    """
    counts = np.array([chunk.count for chunk in chunks], np.int32)
    starts = np.array([chunk.start for chunk in chunks], np.int32)
    query_starts = np.zeros(len(chunks) + 1, np.int32)
    counts.cumsum(out=query_starts[1:])

    tables = [manager.block_table(chunk.sequence.sequence_id) for chunk in chunks]
    block_tables = np.zeros((len(chunks), max(map(len, tables))), np.int32)
    token_ids = np.empty(query_starts[-1], np.int32)
    for row, (chunk, table) in enumerate(zip(chunks, tables, strict=True)):
        block_tables[row, : len(table)] = table
        token_ids[query_starts[row] : query_starts[row + 1]] = chunk.sequence.token_ids[
            chunk.start : chunk.end
        ]

    rows = np.repeat(np.arange(len(chunks)), counts)
    positions = np.arange(query_starts[-1], dtype=np.int32)
    positions += np.repeat(starts - query_starts[:-1], counts)
    blocks = block_tables[rows, positions // block_tokens].astype(np.int64)
    return StepBatch(
        token_ids=token_ids,
        positions=positions,
        slots=blocks * block_tokens + positions % block_tokens,
        query_starts=query_starts,
        context_lens=starts + counts,
        block_tables=block_tables,
        logit_rows=_logit_rows(chunks, query_starts),
    )


def _logit_rows(chunks: Chunks[Chunk], query_starts: NDArray[np.int32]) -> NDArray[np.int32]:
    rows: list[int] = []
    for chunk, first in zip(chunks, query_starts.tolist(), strict=False):
        rows.extend(position - chunk.start + first for position in chunk.logprob_positions)
        if chunk.wants_token:
            rows.append(first + chunk.count - 1)
    return np.array(rows, np.int32)
