"""A real server under clients that cancel, time out, hang up, freeze and die."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from live_server import LiveServer, serve
from metrics_invariants import assert_adds_up
from metrics_page import scrape

from service.api.gen.plimsoll.v1 import (
    engine_admin_pb2,
    engine_admin_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STREAMS = 64
CHAOS_SECONDS = 180.0
WARM_UP_SECONDS = 60.0
CLIENT_SCRIPT = Path(__file__).parent.parent / "stream_client.py"
MIB = 1024**2


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serve("--kv-blocks", "300", "--max-waiting-requests", "256") as live:
        yield live


async def stats(server: LiveServer) -> engine_admin_pb2.GetStatsResponse:
    async with grpc.aio.insecure_channel(server.admin_address) as channel:
        stub = engine_admin_pb2_grpc.EngineAdminServiceStub(channel)
        answer: engine_admin_pb2.GetStatsResponse = await stub.GetStats(
            engine_admin_pb2.GetStatsRequest()
        )
    return answer


def assert_conserved(seen: engine_admin_pb2.GetStatsResponse) -> None:
    blocks = seen.blocks
    assert blocks.free + blocks.cached + blocks.active + blocks.reserved == blocks.total, seen


async def assert_drains_to_nothing(server: LiveServer) -> None:
    """Blocks in use and requests are back to zero after the last client's end."""
    give_up = time.monotonic() + 120
    while True:
        seen = await stats(server)
        assert_conserved(seen)
        blocks = seen.blocks.active + seen.blocks.reserved
        if not (blocks or seen.running_requests or seen.waiting_requests):
            return
        assert time.monotonic() < give_up, f"still in use: {seen}"
        await asyncio.sleep(0.1)


def request(rng: random.Random) -> inference_pb2.GenerateStreamRequest:
    made = inference_pb2.GenerateStreamRequest(
        text="Tell me about "
        + " ".join(str(rng.randrange(10**6)) for _ in range(rng.choice((2, 2, 10, 60))))
    )
    made.options.stopping.max_tokens = rng.choice((1, 8, 24, 60))
    made.options.sampling.temperature = rng.choice((0.0, 1.0))
    made.options.sampling.candidate_count = rng.choice((1, 1, 1, 3))
    return made


async def one_call(
    stub: inference_pb2_grpc.InferenceServiceStub, rng: random.Random, ends: Counter[str]
) -> None:
    fate = rng.choice(("finish", "finish", "cancel", "deadline", "cancel at once"))
    deadline = rng.uniform(0.001, 3.0) if fate == "deadline" else 120.0
    call = stub.GenerateStream(request(rng), timeout=deadline)
    messages = 0
    limit = rng.randrange(1, 12)
    try:
        if fate == "cancel at once":
            call.cancel()
        async for _ in call:
            messages += 1
            if fate == "cancel" and messages == limit:
                call.cancel()
        ends["ok"] += 1
    except grpc.aio.AioRpcError as error:
        ends[error.code().name] += 1
    except asyncio.CancelledError:
        if asyncio.current_task().cancelling():  # type: ignore[union-attr]
            raise
        ends["cancelled"] += 1


async def worker(server: LiveServer, seed: int, until: float, ends: Counter[str]) -> None:
    rng = random.Random(seed)
    while time.monotonic() < until:
        # Leaving the block closes the channel: with a live call that is a hang-up.
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            for _ in range(rng.randrange(1, 4)):
                if time.monotonic() >= until:
                    return
                if rng.random() < 0.1:
                    with contextlib.suppress(asyncio.TimeoutError):
                        call = one_call(stub, rng, Counter())
                        await asyncio.wait_for(call, rng.uniform(0.0, 1.0))
                    ends["hung up"] += 1
                    break
                await one_call(stub, rng, ends)


async def killed_clients(server: LiveServer, seed: int, until: float, ends: Counter[str]) -> None:
    rng = random.Random(seed)
    while time.monotonic() < until:
        client = await asyncio.create_subprocess_exec(
            sys.executable, str(CLIENT_SCRIPT), server.address, "4", "500"
        )
        await asyncio.sleep(rng.uniform(1.0, 6.0))
        client.kill()
        await client.wait()
        ends["killed"] += 1


async def test_nothing_is_left_after_three_minutes_of_chaos(server: LiveServer) -> None:
    ends: Counter[str] = Counter()
    began = time.monotonic()
    until = began + CHAOS_SECONDS
    tasks = [asyncio.create_task(worker(server, i, until, ends)) for i in range(STREAMS - 4)]
    tasks.append(asyncio.create_task(killed_clients(server, 99, until, ends)))
    warm: tuple[int, int] | None = None
    while time.monotonic() < until:
        await asyncio.sleep(2)
        seen = await stats(server)
        assert_conserved(seen)
        # Pages of the pool become resident when a block is first used. An eviction tells that
        # all have been.
        is_warm = seen.evictions_total > 0 and time.monotonic() - began > WARM_UP_SECONDS
        if warm is None and is_warm:
            warm = server.front.memory_info().rss, server.engine.memory_info().rss
    await asyncio.gather(*tasks)
    await assert_drains_to_nothing(server)
    assert_adds_up(await scrape(server.metrics_address))
    assert warm is not None, "the pool never filled: this machine is too slow for the load"
    grown = (
        server.front.memory_info().rss - warm[0],
        server.engine.memory_info().rss - warm[1],
    )
    print(f"\nends: {dict(ends)}; growth of front and engine: {grown[0]} and {grown[1]} bytes")
    assert ends["ok"] > 20
    assert {"CANCELLED", "DEADLINE_EXCEEDED", "killed", "hung up"} <= {
        "CANCELLED" if name == "cancelled" else name for name in ends
    }
    assert ends["INTERNAL"] == ends["UNKNOWN"] == 0
    assert grown[0] < 16 * MIB
    assert grown[1] < 64 * MIB


async def test_a_frozen_client_hurts_nobody(server: LiveServer) -> None:
    frozen = await asyncio.create_subprocess_exec(
        sys.executable, str(CLIENT_SCRIPT), server.address, "4", "60", stdout=subprocess.PIPE
    )
    assert frozen.stdout is not None
    assert await frozen.stdout.readline() == b"streaming\n"
    frozen.send_signal(signal.SIGSTOP)
    try:
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = inference_pb2_grpc.InferenceServiceStub(channel)
            asked = inference_pb2.GenerateRequest(text="The sea is")
            asked.options.stopping.max_tokens = 20
            answer = await stub.Generate(asked, timeout=120)
            assert answer.usage.completion_tokens <= 20
            # The frozen client's sequences run to their end and free their blocks.
            await assert_drains_to_nothing(server)
    finally:
        frozen.kill()
        await frozen.wait()
