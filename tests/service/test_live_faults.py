"""Each kind of fault, carried out once on a real server under live streams, and survived.

Nobody's stream breaks, and greedy float32 text is that of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import grpc
import pytest
from live_server import LiveServer, serve

from service.api.faults import faults_request
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.cli import main
from service.client import GenerationOptions, PlimsollClient, PlimsollError
from service.faults.plan import (
    Balloon,
    ExitEngine,
    FailAllocation,
    Fault,
    FaultPlan,
    HangEngine,
    LoseDevice,
    LoseTransfer,
    SlowDevice,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 6
OPTIONS = GenerationOptions(max_tokens=32, temperature=0.0, ignore_eos=True)
SILENCE_SECONDS = 4.0
POOL_BLOCKS, MAX_BLOCKS = 600, 700
BLOCK_BYTES = 30 * 2 * 3 * 64 * 16 * 4  # of SmolLM2-135M in float32
HOST_BYTES = 2 * BLOCK_BYTES


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    flags = ["--dtype", "float32", "--kv-blocks", str(POOL_BLOCKS), "--allow-faults"]
    flags += ["--kv-memory-max-bytes", str((MAX_BLOCKS + 1) * BLOCK_BYTES), "--allow-ignore-eos"]
    flags += ["--engine-silence-seconds", f"{SILENCE_SECONDS:g}"]
    flags += ["--flight-folder", str(tmp_path_factory.mktemp("flight"))]
    with serve(*flags) as live:
        yield live


@pytest.fixture(scope="module")
def undisturbed(server: LiveServer) -> list[str]:
    """What the streams say when nothing goes wrong."""

    async def run() -> list[str]:
        async with client_of(server) as client:
            return await stream_all(client)

    return asyncio.run(run())


def client_of(server: LiveServer) -> PlimsollClient:
    """A client that hides nothing: no call is tried again, no stream resumed."""
    return PlimsollClient(server.address, admin_target=server.admin_address, resume=None)


async def stream_one(client: PlimsollClient, number: int) -> str:
    text, tokens = "", 0
    stream = client.stream(f"{number} ways to cross the sea:", OPTIONS, timeout_seconds=200)
    async for chunk in stream:
        text += chunk.text
        tokens += len(chunk.token_ids)
    assert stream.usage is not None
    assert stream.usage.completion_tokens == OPTIONS.max_tokens
    return text


async def stream_all(client: PlimsollClient) -> list[str]:
    return await asyncio.gather(*(stream_one(client, number) for number in range(STREAMS)))


async def eventually(
    client: PlimsollClient, condition: Callable[[pb.GetStatsResponse], bool]
) -> pb.GetStatsResponse:
    give_up = time.monotonic() + 200
    while not condition(stats := await client.stats()):
        assert time.monotonic() < give_up, stats
        await asyncio.sleep(0.05)
    return stats


async def carry_out(
    server: LiveServer, *faults: Fault
) -> tuple[list[str], pb.GetStatsResponse, pb.GetStatsResponse]:
    """Texts of all streams with these faults among them; statistics before and after."""
    async with client_of(server) as client:
        before = await client.stats()
        await client.inject_faults(faults_request(FaultPlan(list(faults))))
        texts = await stream_all(client)
        after = await eventually(client, lambda stats: stats.faults.ordered == 0)
        return texts, before, after


def struck(before: pb.GetStatsResponse, after: pb.GetStatsResponse) -> int:
    return after.faults.strikes_total - before.faults.strikes_total


def restarts(before: pb.GetStatsResponse, after: pb.GetStatsResponse) -> int:
    return after.engine_restarts_total - before.engine_restarts_total


async def test_allocations_fail_inside_steps(server: LiveServer, undisturbed: list[str]) -> None:
    fault = FailAllocation(nth=3, count=10, chance=0.4, seed=1)
    texts, before, after = await carry_out(server, fault)
    assert texts == undisturbed
    assert (struck(before, after), restarts(before, after)) == (10, 0)
    assert after.oom_rungs.retries_total - before.oom_rungs.retries_total >= 5
    assert after.oom_rungs.failures_total == 0


async def test_the_pool_cannot_grow(server: LiveServer) -> None:
    order = pb.SetMemoryUtilizationRequest(total_blocks=MAX_BLOCKS)
    async with client_of(server) as client:
        plan = FaultPlan([FailAllocation(owner="kv_pool")])
        await client.inject_faults(faults_request(plan))
        with pytest.raises(PlimsollError) as caught:
            await client.set_memory(order)
        assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.metadata["total_blocks"] == str(POOL_BLOCKS)
        assert (await client.set_memory(order)).after.total == MAX_BLOCKS
        order.total_blocks = POOL_BLOCKS
        assert (await client.set_memory(order)).after.total == POOL_BLOCKS


async def test_a_balloon_comes_and_goes(server: LiveServer, undisturbed: list[str]) -> None:
    balloon = Balloon(share=0.5, rise_seconds=1, hold_seconds=600)
    async with client_of(server) as client:
        before = await client.stats()
        await client.inject_faults(faults_request(FaultPlan([balloon])))
        streams = asyncio.create_task(stream_all(client))
        half = before.memory.total_bytes // 2
        grown = before.memory.other_bytes + half // 2
        await eventually(client, lambda stats: stats.memory.other_bytes > grown)
        assert await streams == undisturbed
        await client.inject_faults(pb.InjectFaultsRequest())
        after = await eventually(client, lambda stats: stats.memory.other_bytes < grown)
    assert restarts(before, after) == 0


async def test_a_slow_device_is_not_a_frozen_one(
    server: LiveServer, undisturbed: list[str]
) -> None:
    slow = SlowDevice(after_seconds=0.5, extra_seconds=2 * SILENCE_SECONDS, hold_seconds=0.5)
    texts, before, after = await carry_out(server, slow)
    assert texts == undisturbed
    assert restarts(before, after) == 0


@pytest.mark.parametrize(
    "fault",
    [
        LoseDevice(nth_step=9),
        ExitEngine(nth_step=9),
        HangEngine(nth_step=9),
    ],
    ids=["lost device", "exit", "hang"],
)
async def test_streams_outlive_an_engine(
    server: LiveServer, undisturbed: list[str], fault: Fault
) -> None:
    texts, before, after = await carry_out(server, fault)
    assert texts == undisturbed
    assert (struck(before, after), restarts(before, after)) == (1, 1)


async def test_the_command_line_orders_and_ends_faults(
    server: LiveServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('[[faults]]\nkind = "exit_engine"\nafter_seconds = 3600\n')
    ask = ["--admin-server", server.admin_address]
    assert await asyncio.to_thread(main, ["fault", str(plan), *ask]) == 0
    assert await asyncio.to_thread(main, ["stats", *ask]) == 0
    assert await asyncio.to_thread(main, ["fault", "--clear", *ask]) == 0
    out = capsys.readouterr().out
    assert "faults ordered: 1, replaced: 0" in out
    assert "allowed: 1 ordered" in out
    assert "faults ordered: 0, replaced: 1" in out


# --- cache tiers, of which the pool has to be small ---

STORY = "The captain looked at the line on the hull and ordered the crew to unload a crate. " * 7
OTHERS = [f"Number {i} is followed by number {i + 1}, as everybody knows. " * 14 for i in range(2)]


@contextlib.asynccontextmanager
async def server_with_a_disk(folder: Path) -> AsyncIterator[PlimsollClient]:
    flags = ["--dtype", "float32", "--kv-blocks", "20", "--allow-faults"]
    flags += ["--host-cache-bytes", str(HOST_BYTES), "--tier-timeout-seconds", "1"]
    flags += ["--disk-cache-folder", str(folder / "disk"), "--flight-folder", str(folder / "f")]
    with serve(*flags) as live:
        async with client_of(live) as client:
            yield client


def is_on_disk(stats: pb.GetStatsResponse) -> bool:
    """Whether all that left the pool is there, but for what the host holds."""
    spilled_bytes = stats.tiers.spilled_blocks_total * BLOCK_BYTES
    return spilled_bytes > 0 and stats.tiers.disk_used_bytes >= spilled_bytes - HOST_BYTES


async def test_a_load_that_never_completes_is_computed(tmp_path: Path) -> None:
    options = GenerationOptions(max_tokens=16, temperature=0.0)
    async with server_with_a_disk(tmp_path) as client:
        first = await client.generate(STORY, options)
        for other in OTHERS:
            await client.generate(other, options)
        await eventually(client, is_on_disk)
        await client.inject_faults(faults_request(FaultPlan([LoseTransfer()])))
        again = await client.generate(STORY, options)
        stats = await eventually(client, lambda stats: stats.faults.ordered == 0)
    assert again.text == first.text
    assert stats.faults.strikes_total == 1
    assert stats.tiers.expired_loads_total == 1
    assert stats.engine_restarts_total == 0
