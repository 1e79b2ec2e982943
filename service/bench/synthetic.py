"""Prompts made of random tokens, with exact lengths and exact sharing."""

from __future__ import annotations

import random
from dataclasses import dataclass

from kvcache.replay.trace import MOONCAKE_BLOCK_TOKENS
from service.bench.workload import Lengths, PlannedRequest


@dataclass(frozen=True, slots=True)
class SharedPrefix:
    """A share of the requests begins with the same tokens."""

    tokens: int
    share: float  # of the requests, in [0, 1]


class TokenSource:
    """Random token ids that depend on a seed and a name only.

    Ids come from the middle three quarters of the vocabulary: special and byte tokens are
    at its ends in all common tokenizers.
    """

    def __init__(self, vocab_size: int, seed: int) -> None:
        self._low = vocab_size // 8
        self._high = max(self._low + 1, vocab_size - vocab_size // 8)
        self._seed = seed

    def tokens(self, name: str, count: int) -> tuple[int, ...]:
        """`count` ids; the same name gives the same ids, and a prefix of them for less."""
        rng = random.Random(f"{self._seed}/{name}")
        return tuple(rng.randrange(self._low, self._high) for _ in range(count))


def synthetic_request(
    source: TokenSource, number: int, lengths: Lengths, prefix: SharedPrefix | None
) -> PlannedRequest:
    """Request `number` of a workload without a trace's own sharing."""
    shared: tuple[int, ...] = ()
    if prefix is not None and _is_chosen(number, prefix.share):
        shared = source.tokens("shared prefix", min(prefix.tokens, lengths.prompt_tokens))
    own = source.tokens(f"request {number}", lengths.prompt_tokens - len(shared))
    return PlannedRequest(shared + own, lengths.output_tokens)


def traced_request(
    source: TokenSource, number: int, lengths: Lengths, block_tokens: int
) -> PlannedRequest:
    """Request `number` of a trace with block ids: equal leading ids are equal tokens."""
    prompt: list[int] = []
    for block in lengths.shared_blocks:
        missing = lengths.prompt_tokens - len(prompt)
        prompt += source.tokens(f"block {block}", min(block_tokens, missing))
    prompt += source.tokens(f"request {number}", lengths.prompt_tokens - len(prompt))
    return PlannedRequest(tuple(prompt), lengths.output_tokens)


def scaled(lengths: Lengths, scale: float) -> Lengths:
    """All lengths times `scale`, at least one token each; block ids stay."""
    return Lengths(
        max(1, round(lengths.prompt_tokens * scale)),
        max(1, round(lengths.output_tokens * scale)),
        lengths.shared_blocks,
    )


def scaled_block_tokens(scale: float) -> int:
    """Tokens behind one block id of a trace scaled by `scale`."""
    return max(1, round(MOONCAKE_BLOCK_TOKENS * scale))


def _is_chosen(number: int, share: float) -> bool:
    """Spreads the chosen requests evenly: after any n, n * share of them, rounded down."""
    return int((number + 1) * share) > int(number * share)
