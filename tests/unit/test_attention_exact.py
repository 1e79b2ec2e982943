"""The exact kernel: a query is answered with the same bits whatever it is computed with."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kvcache.attention import kernels
from kvcache.attention.kernels import ExactKernel

KV_HEADS, GROUP, HEAD_DIM = 3, 3, 64  # those of SmolLM2-135M
CONTEXT = 420
MULTIPLE = ExactKernel.tokens_multiple
KERNEL = ExactKernel(HEAD_DIM**-0.5)

_random = torch.Generator().manual_seed(1)
KEYS = torch.randn(KV_HEADS, CONTEXT, HEAD_DIM, generator=_random)
VALUES = torch.randn(KV_HEADS, CONTEXT, HEAD_DIM, generator=_random)
QUERIES = torch.randn(KV_HEADS, GROUP, CONTEXT, HEAD_DIM, generator=_random)
LENGTHS = [1, 2, 15, 16, 17, 63, 128, 129, 192, 193, 250, 300, 385, CONTEXT]


def padded_length(tokens: int) -> int:
    return -(-tokens // MULTIPLE) * MULTIPLE


def context(tokens: int, length: int) -> tuple[Tensor, Tensor]:
    """K and V of the first tokens, padded with the first one."""
    places = torch.arange(length)
    places[tokens:] = 0
    return KEYS[:, places], VALUES[:, places]


def decoded(lengths: list[int], padded_tokens: int) -> list[Tensor]:
    """Answers to the last token of contexts of these lengths, in one group."""
    keys, values = zip(*(context(n, padded_tokens) for n in lengths), strict=True)
    bias = torch.zeros(len(lengths), 1, 1, padded_tokens)
    for row, tokens in enumerate(lengths):
        bias[row, ..., tokens:] = -math.inf
    query = torch.stack([QUERIES[:, :, n - 1] for n in lengths])
    return list(KERNEL.decode(query, torch.stack(keys), torch.stack(values), bias))


def prefilled(start: int, end: int) -> Tensor:
    """Answers to the tokens of a chunk, [kv_heads, group, end - start, head_dim]."""
    keys, values = context(end, padded_length(end))
    mask = KERNEL.prefill_mask(end - start, end, padded_length(end))
    return KERNEL.prefill(QUERIES[:, :, start:end], keys, values, mask)


@pytest.fixture(scope="module")
def alone() -> dict[int, Tensor]:
    """The answer to the last token of each length, decoded alone."""
    return {n: decoded([n], padded_length(n))[0] for n in LENGTHS}


@pytest.mark.parametrize("more", [16, 112, 256, 1008])
def test_padding_changes_no_bit(alone: dict[int, Tensor], more: int) -> None:
    for tokens, answer in alone.items():
        assert torch.equal(decoded([tokens], padded_length(tokens) + more)[0], answer), tokens


@pytest.mark.parametrize("size", [2, 3, 7, len(LENGTHS)])
def test_neighbours_change_no_bit(alone: dict[int, Tensor], size: int) -> None:
    for first in range(len(LENGTHS) - size + 1):
        lengths = LENGTHS[first : first + size]
        for tokens, got in zip(lengths, decoded(lengths, padded_length(max(lengths))), strict=True):
            assert torch.equal(got, alone[tokens]), tokens


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 16, 100, 256, CONTEXT])
def test_a_chunk_answers_as_steps_of_one_token_do(alone: dict[int, Tensor], chunk: int) -> None:
    """What is computed again after a crash is what was computed before it."""
    for tokens, answer in alone.items():
        start = (tokens - 1) // chunk * chunk
        got = prefilled(start, min(start + chunk, CONTEXT))[:, :, tokens - 1 - start]
        assert torch.equal(got, answer), tokens


def test_tiles_of_a_chunk_change_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = prefilled(100, 300)
    monkeypatch.setattr(kernels, "_MOST_SCORES", 1 << 15)
    assert torch.equal(prefilled(100, 300), whole)
