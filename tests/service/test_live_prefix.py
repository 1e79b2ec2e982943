"""A shared prefix is computed once, and a hit saves the time that it promises to save."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator

import numpy as np
import pytest
from live_server import LiveServer, serve

from service.client import Generation, GenerationOptions, PlimsollClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PREFIX_TOKENS = 2048
OWN_TOKENS = 8
OPTIONS = GenerationOptions(max_tokens=1, temperature=0.0)


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serve("--kv-blocks", "600") as live:
        yield live


def prompts(seed: int, count: int) -> list[list[int]]:
    """`count` prompts with a common prefix that no other seed has."""
    rng = np.random.default_rng(seed)
    prefix = rng.integers(1000, 40_000, PREFIX_TOKENS).tolist()
    return [prefix + rng.integers(1000, 40_000, OWN_TOKENS).tolist() for _ in range(count)]


def computed_tokens(answer: Generation) -> int:
    return answer.usage.prompt_tokens - answer.usage.cached_prompt_tokens


async def test_sixteen_requests_at_once_compute_their_prefix_once(server: LiveServer) -> None:
    async with PlimsollClient(server.address) as client:
        answers = await asyncio.gather(*(client.generate(p, OPTIONS) for p in prompts(1, 16)))
    computed = sorted(map(computed_tokens, answers))
    assert computed == [OWN_TOKENS] * 15 + [PREFIX_TOKENS + OWN_TOKENS]


async def test_a_hit_takes_a_tenth_of_the_time_of_a_miss(server: LiveServer) -> None:
    """Times of one run, one request at a time: a ratio, whatever the machine."""
    first, *others = prompts(2, 4)
    async with PlimsollClient(server.address) as client:
        miss = await client.generate(first, OPTIONS)
        hits = [await client.generate(prompt, OPTIONS) for prompt in others]
        # A prompt of nothing but cached blocks: the last one is copied but for its last token,
        # which is computed for its logits.
        whole = await client.generate(first[:PREFIX_TOKENS], OPTIONS)
    assert miss.usage.cached_prompt_tokens == 0
    assert [hit.usage.cached_prompt_tokens for hit in hits] == [PREFIX_TOKENS] * 3
    assert computed_tokens(whole) == 1
    miss_seconds = miss.timings.time_to_first_token_seconds
    hit_seconds = statistics.median(hit.timings.time_to_first_token_seconds for hit in hits)
    assert hit_seconds <= 0.1 * miss_seconds, f"{hit_seconds:.3f} s against {miss_seconds:.3f} s"
