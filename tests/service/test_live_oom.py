"""A real server, with the real model, whose device runs out of memory.

The device is a CPU with a limit. Nobody's stream breaks while 200 allocations fail at random
operators of random steps, and greedy float32 text is that of an undisturbed run. What does not fit
the pool gets a typed answer.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from live_server import LiveServer, serve

from service.api.faults import faults_request
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.client import GenerationOptions, PlimsollClient, PlimsollError
from service.faults.plan import Balloon, FailAllocation, Fault, FaultPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

DEVICE_BYTES = 2 << 30  # weights in float32 take 540 MiB of it
SMALL_DEVICE_BYTES = 1500 << 20  # a pool of about 100 blocks is left
BLOCK_TOKENS = 16
STREAMS = 6
PROMPTS = [
    f"{number} ways to cross the sea: " + "by sail, by oar, by luck; " * (number % 7)
    for number in range(12)
]
OPTIONS = GenerationOptions(max_tokens=24, temperature=0.0, ignore_eos=True)


def client_of(server: LiveServer) -> PlimsollClient:
    """A client that hides nothing: no call is tried again, no stream resumed."""
    return PlimsollClient(server.address, admin_target=server.admin_address, resume=None)


async def eventually(
    client: PlimsollClient, condition: Callable[[pb.GetStatsResponse], bool]
) -> pb.GetStatsResponse:
    give_up = time.monotonic() + 200
    while not condition(stats := await client.stats()):
        assert time.monotonic() < give_up, stats
        await asyncio.sleep(0.05)
    return stats


async def inject(client: PlimsollClient, *faults: Fault) -> None:
    await client.inject_faults(faults_request(FaultPlan(list(faults))))


async def drained(client: PlimsollClient) -> pb.GetStatsResponse:
    """Figures once nothing is left to do; fails if blocks are still in use then."""
    stats = await eventually(client, lambda s: not (s.running_requests or s.waiting_requests))
    blocks = stats.blocks
    assert (blocks.active, blocks.reserved) == (0, 0)
    assert blocks.free + blocks.cached == blocks.total
    return stats


class TestAllocationFailures:
    """200 of them: most at random, some in rows that climb the ladder up to its last but one rung.

    The seed is one with at most 5 failures in a row: after more than 6 the engine would rest
    before it tries again.
    """

    RANDOM = FailAllocation(nth=2, count=176, chance=0.4, seed=1)
    ROW = FailAllocation(nth=3, count=6)
    ROWS = 4

    @pytest.fixture(scope="class")
    @staticmethod
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
        flags = ["--dtype", "float32", "--device-memory-bytes", str(DEVICE_BYTES)]
        flags += ["--allow-faults", "--allow-ignore-eos"]
        flags += ["--flight-folder", str(tmp_path_factory.mktemp("flight"))]
        with serve(*flags) as live:
            yield live

    @staticmethod
    async def stream(client: PlimsollClient, number: int) -> str:
        text = ""
        stream = client.stream(PROMPTS[number], OPTIONS)
        async for chunk in stream:
            text += chunk.text
        assert stream.usage is not None
        assert stream.usage.completion_tokens == OPTIONS.max_tokens
        return text

    async def undisturbed(self, client: PlimsollClient) -> list[str]:
        numbers, texts = iter(range(len(PROMPTS))), [""] * len(PROMPTS)

        async def work() -> None:
            for number in numbers:
                texts[number] = await self.stream(client, number)

        await asyncio.gather(*(work() for _ in range(STREAMS)))
        return texts

    async def test_nobody_notices_200_of_them(self, server: LiveServer) -> None:
        engine_pid = server.engine.pid
        async with client_of(server) as client:
            texts = await self.undisturbed(client)
            before = await drained(client)
            is_over, numbers = False, itertools.cycle(range(len(PROMPTS)))
            different: list[tuple[int, str]] = []
            streams = 0

            async def work() -> None:
                nonlocal streams
                while not is_over:
                    number = next(numbers)
                    text = await self.stream(client, number)  # raises if it is dropped
                    streams += 1
                    if text != texts[number]:
                        different.append((number, text))

            workers = [asyncio.create_task(work()) for _ in range(STREAMS)]
            for fault in [self.RANDOM, *[self.ROW] * self.ROWS]:
                await inject(client, fault)
                await eventually(client, lambda stats: stats.faults.ordered == 0)
            is_over = True
            await asyncio.gather(*workers)
            after = await drained(client)
        assert after.faults.strikes_total - before.faults.strikes_total == 200
        assert server.engine.pid == engine_pid
        assert after.engine_restarts_total == before.engine_restarts_total
        assert different == []
        rungs = after.oom_rungs
        assert rungs.failures_total == 0
        assert rungs.requeues_total >= self.ROWS
        assert rungs.shrinks_total >= 2 * self.ROWS
        told = rungs.retries_total + rungs.shrinks_total + rungs.requeues_total
        assert told == 200
        assert streams >= STREAMS


class TestSizes:
    """What does not fit the pool is answered, whether memory is short or not."""

    POOL_BLOCKS = 16

    @staticmethod
    def prompt(tokens: int, salt: int = 0) -> list[int]:
        return [1000 + salt, *range(2000, 2000 + tokens - 1)]

    async def answer(self, client: PlimsollClient, prompt_tokens: int, max_tokens: int) -> str:
        """Tokens and finish reason of a request, or why it was refused.

        Without a deadline, which would be an answer of its own on a slow machine.
        """
        options = GenerationOptions(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)
        try:
            prompt = self.prompt(prompt_tokens, max_tokens)
            generation = await client.generate(prompt, options)
        except PlimsollError as error:
            return f"{error.code.name} {error.reason}"
        assert generation.usage is not None
        return f"{generation.usage.completion_tokens} {generation.finish_reason.name}"

    async def test_prompts_about_as_large_as_the_pool(self) -> None:
        flags = ["--kv-blocks", str(self.POOL_BLOCKS), "--allow-ignore-eos"]
        flags += ["--kv-memory-max-bytes", "1GiB"]  # so that the context may be longer
        pool = self.POOL_BLOCKS * BLOCK_TOKENS
        expected = {
            (pool - BLOCK_TOKENS, 8): "8 MAX_TOKENS",
            (pool - BLOCK_TOKENS, 100): "17 EVICTED",  # the last token needs no slot
            (pool, 1): "1 MAX_TOKENS",
            (pool, 100): "1 EVICTED",
            (pool + 1, 8): "FAILED_PRECONDITION EXCEEDS_CACHE_CAPACITY",
            (pool + BLOCK_TOKENS, 8): "FAILED_PRECONDITION EXCEEDS_CACHE_CAPACITY",
        }
        with serve(*flags) as live:
            async with client_of(live) as client:
                one_by_one = [await self.answer(client, *request) for request in expected]
                assert one_by_one == list(expected.values())
                together = await asyncio.gather(
                    *(self.answer(client, *request) for request in list(expected) * 3)
                )
                assert together == list(expected.values()) * 3
                await drained(client)

    async def test_a_pool_that_gave_way_to_others(self, tmp_path: Path) -> None:
        """A request for more than is left waits, and is answered; with memory back it runs."""
        flags = ["--dtype", "float32", "--device-memory-bytes", str(SMALL_DEVICE_BYTES)]
        flags += ["--pool-wait-seconds", "3", "--allow-faults", "--allow-ignore-eos"]
        flags += ["--flight-folder", str(tmp_path)]
        with serve(*flags) as live:
            async with client_of(live) as client:
                whole = (
                    await eventually(client, lambda stats: stats.blocks.total > 0)
                ).blocks.total
                await inject(client, Balloon(share=0.14, hold_seconds=600))
                left = (
                    await eventually(client, lambda stats: stats.blocks.total < whole // 2)
                ).blocks.total
                tokens = (left + whole) // 2 * BLOCK_TOKENS
                short = await self.answer(client, tokens, 4)
                small = await self.answer(client, 100, 4)
                await inject(client)
                await eventually(client, lambda stats: stats.blocks.total == whole)
                again = await self.answer(client, tokens, 4)
                await drained(client)
        assert short.split()[0] in ("FAILED_PRECONDITION", "RESOURCE_EXHAUSTED")
        assert (small, again) == ("4 MAX_TOKENS", "4 MAX_TOKENS")
