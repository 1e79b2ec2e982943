"""Paged attention against a float64 reference, in memory that is poisoned with NaN."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kvcache.attention import cpu
from kvcache.attention.cpu import CpuAttention
from kvcache.attention.kernels import ExactKernel, FusedKernel

LAYERS, KV_HEADS, HEAD_DIM, BLOCK = 2, 2, 8, 4


def reference(
    query: np.ndarray, keys: np.ndarray, values: np.ndarray, group: int, scale: float
) -> np.ndarray:
    """Causal attention of the last queries of a context, float64, one head at a time."""
    queries, heads, _ = query.shape
    context = len(keys)
    output = np.zeros(query.shape)
    for head in range(heads):
        scores = query[:, head].astype(np.float64) @ keys[:, head // group].T * scale
        for row in range(queries):
            visible = context - queries + row + 1
            weights = np.exp(scores[row, :visible] - scores[row, :visible].max())
            output[row, head] = weights / weights.sum() @ values[:visible, head // group]
    return output


CASES = {
    "one token": [(1, 1)],
    "decode, ragged": [(1, 1), (1, 4), (1, 5), (1, 30), (1, 17)],
    "whole prompts": [(5, 5), (8, 8)],
    "chunks behind a context": [(3, 9), (4, 12), (2, 2)],
    "mixed": [(1, 7), (6, 6), (1, 16), (3, 20), (1, 2)],
}


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kernel", [FusedKernel, ExactKernel])
def test_attention_equals_reference(
    kernel: type[FusedKernel | ExactKernel],
    case: str,
    group: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cpu, "GROUP_TOKENS", 40)  # several groups of decoding sequences
    lengths = CASES[case]
    rng = np.random.default_rng(7)
    blocks_of = [-(-context // BLOCK) for _, context in lengths]
    num_blocks = 1 + sum(blocks_of) + 3
    pool = torch.full((num_blocks, LAYERS, 2, BLOCK, KV_HEADS, HEAD_DIM), float("nan"))
    attention = CpuAttention(pool, kernel(HEAD_DIM**-0.5))
    ids = iter(rng.permutation(np.arange(1, num_blocks)).tolist())
    tables = np.zeros((len(lengths), max(blocks_of)), np.int32)
    for row, count in enumerate(blocks_of):
        tables[row, :count] = [next(ids) for _ in range(count)]
    contexts = [rng.standard_normal((n, 2, KV_HEADS, HEAD_DIM), np.float32) for _, n in lengths]
    layer = 1

    def slots(row: int, first: int, last: int) -> np.ndarray:
        at = np.arange(first, last)
        return tables[row][at // BLOCK].astype(np.int64) * BLOCK + at % BLOCK

    starts = np.cumsum([0] + [q for q, _ in lengths]).astype(np.int32)
    lens = np.array([n for _, n in lengths], np.int32)

    def write(spans: list[tuple[int, int]]) -> object:
        where = np.concatenate([slots(row, *span) for row, span in enumerate(spans)])
        plan = attention.plan(where, starts, lens, tables)
        kv = np.concatenate([c[a:b] for c, (a, b) in zip(contexts, spans, strict=True)])
        attention.write(plan, layer, torch.from_numpy(kv))
        return plan

    write([(0, n - q) for q, n in lengths])  # earlier steps
    plan = write([(n - q, n) for q, n in lengths])
    query = rng.standard_normal((starts[-1], KV_HEADS * group, HEAD_DIM), np.float32)
    output = attention.attend(plan, layer, torch.from_numpy(query)).numpy()

    assert np.isfinite(output).all()
    for row, kv in enumerate(contexts):
        rows = slice(starts[row], starts[row + 1])
        want = reference(query[rows], kv[:, 0], kv[:, 1], group, HEAD_DIM**-0.5)
        np.testing.assert_allclose(output[rows], want, rtol=1e-5, atol=1e-5)
    assert torch.isnan(pool[:, 0]).all()  # the other layer is untouched
    assert int((~torch.isnan(pool[:, layer, 0, :, 0, 0])).sum()) == lens.sum()
