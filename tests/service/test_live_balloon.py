"""A real server, whose device another process fills to 60 % under live streams, and leaves again.

The device is a CPU with a limit that leaves weights, runtime, a step and a pool of about a tenth
of its size. Nobody's stream breaks, and greedy float32 text is that of an undisturbed run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from live_server import LiveServer, serve

from kvcache.pressure import PressureLevel
from service.api.faults import faults_request
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.client import GenerationOptions, PlimsollClient
from service.drill.prompts import prompts
from service.drill.record import Ending, Reference, StreamRecord, inter_token_seconds
from service.drill.streams import LiveStreams
from service.drill.watch import SAMPLE_SECONDS
from service.faults.plan import Balloon, Fault, FaultPlan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DEVICE_BYTES = 3600 << 20  # weights in float32 and the runtime take 1.2 GB of it
STREAMS = 8
PROMPTS = prompts(8)
OPTIONS = GenerationOptions(max_tokens=64, temperature=0.0, ignore_eos=True)
BALLOON = Balloon(share=0.6, rise_seconds=10, hold_seconds=10, fall_seconds=5)
UNDISTURBED_SECONDS = 5.0
LIMIT_SECONDS = 300.0  # for whatever is waited for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    flags = ["--dtype", "float32", "--device-memory-bytes", str(DEVICE_BYTES)]
    flags += ["--max-step-tokens", "256", "--allow-faults", "--allow-ignore-eos"]
    flags += ["--flight-folder", str(tmp_path_factory.mktemp("flight"))]
    with serve(*flags) as live:
        yield live


def client_of(server: LiveServer) -> PlimsollClient:
    """A client that hides nothing: no call is tried again, no stream resumed."""
    return PlimsollClient(server.address, admin_target=server.admin_address, resume=None)


async def inject(client: PlimsollClient, *faults: Fault) -> None:
    await client.inject_faults(faults_request(FaultPlan(list(faults))))


@pytest.fixture(scope="module")
def references(server: LiveServer) -> list[Reference]:
    """What the streams say when nothing goes wrong."""

    async def ask() -> list[Reference]:
        async with client_of(server) as client:
            return await streams_of(client).references(STREAMS)

    return asyncio.run(ask())


def streams_of(client: PlimsollClient) -> LiveStreams:
    return LiveStreams(client, PROMPTS, OPTIONS, time.monotonic)


@dataclass
class Watched:
    """All answers of GetStats, about ten a second, and when they came."""

    client: PlimsollClient
    answers: list[tuple[float, pb.GetStatsResponse]] = field(default_factory=list)

    async def run(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def look(self) -> pb.GetStatsResponse:
        stats = await self.client.stats()
        self.answers.append((time.monotonic(), stats))
        return stats

    async def until(self, condition: Callable[[pb.GetStatsResponse], bool]) -> pb.GetStatsResponse:
        give_up = time.monotonic() + LIMIT_SECONDS
        while not condition(stats := await self.look()):
            assert time.monotonic() < give_up, stats
            await asyncio.sleep(SAMPLE_SECONDS)
        return stats

    def first(
        self, since_seconds: float, condition: Callable[[pb.GetStatsResponse], bool]
    ) -> float | None:
        """Seconds from `since_seconds` to the first answer after it that is like this."""
        return next(
            (
                seconds - since_seconds
                for seconds, stats in self.answers
                if seconds >= since_seconds and condition(stats)
            ),
            None,
        )


def assert_adds_up(stats: pb.GetStatsResponse) -> None:
    """Each byte of the device and each block of the pool is somebody's, and only once."""
    memory, blocks = stats.memory, stats.blocks
    taken_bytes = memory.weights_bytes + memory.kv_pool_bytes + memory.activation_bytes
    taken_bytes += memory.graph_bytes + memory.context_bytes + memory.other_bytes
    assert memory.free_bytes + taken_bytes == memory.total_bytes
    used = blocks.active + blocks.reserved + blocks.kept
    assert blocks.free + blocks.cached + used == blocks.total


def assert_undisturbed(records: Sequence[StreamRecord], references: Sequence[Reference]) -> None:
    for record in records:
        assert (record.ending, record.reason) == (Ending.DONE, "max_tokens"), record
        assert Reference(tuple(record.token_ids), record.text) == references[record.prompt]
        assert record.reported_tokens == OPTIONS.max_tokens


def is_calm(stats: pb.GetStatsResponse, whole_blocks: int) -> bool:
    """Whether the pool has its size again, and nothing is told to be short."""
    return stats.blocks.total == whole_blocks and stats.pressure == PressureLevel.NORMAL


def describe(records: Sequence[StreamRecord], begin: float, end: float) -> str:
    """Time between tokens of the streams between two times."""
    gaps = inter_token_seconds(records, begin, end)
    if not gaps.size:
        return "no tokens"
    median, p99 = np.percentile(gaps, (50, 99))
    return (
        f"{gaps.size} tokens in {end - begin:.1f} s; ITL median {1e3 * median:.0f} ms, "
        f"p99 {1e3 * p99:.0f} ms, longest {1e3 * gaps.max():.0f} ms"
    )


async def test_nobody_notices_a_balloon_of_60_percent(
    server: LiveServer, references: list[Reference]
) -> None:
    engine_pid = server.engine.pid
    async with client_of(server) as client:
        streams = streams_of(client)
        watched = Watched(client)
        before = await watched.until(lambda stats: stats.pressure == PressureLevel.NORMAL)
        whole = before.blocks.total
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watched.run())
            live = group.create_task(streams.run(STREAMS))
            await asyncio.sleep(UNDISTURBED_SECONDS)
            rising = time.monotonic()
            await inject(client, BALLOON)
            await asyncio.sleep(BALLOON.end_seconds)
            gone = time.monotonic()
            await watched.until(lambda stats: is_calm(stats, whole))
            calm = time.monotonic()
            await asyncio.sleep(UNDISTURBED_SECONDS)
            ended = time.monotonic()
            streams.stop()
            await live
            watching.cancel()
        after = await watched.until(lambda stats: not stats.running_requests)

    report(watched, streams.records, began, rising, gone, calm, ended)
    assert_undisturbed(streams.records, references)
    assert len(streams.records) > STREAMS
    assert server.engine.pid == engine_pid
    assert after.engine_restarts_total == before.engine_restarts_total
    for _, stats in watched.answers:
        assert_adds_up(stats)
    assert after.oom_rungs.failures_total == 0
    assert (after.blocks.active, after.blocks.reserved, after.blocks.total) == (0, 0, whole)
    others = max(stats.memory.other_bytes for _, stats in watched.answers)
    assert others - before.memory.other_bytes >= 0.999 * BALLOON.share * DEVICE_BYTES
    assert 0 < min(stats.blocks.total for _, stats in watched.answers) < whole // 2
    assert max(stats.pressure for _, stats in watched.answers) > PressureLevel.NORMAL


def report(
    watched: Watched,
    records: Sequence[StreamRecord],
    began: float,
    rising: float,
    gone: float,
    calm: float,
    ended: float,
) -> None:
    """Prints what the issue asks for; run with -s to see it."""
    first, last = watched.answers[0][1], watched.answers[-1][1]
    whole, rungs = first.blocks.total, last.oom_rungs
    full = 0.999 * BALLOON.share * DEVICE_BYTES + first.memory.other_bytes
    lowest = min(stats.blocks.total for _, stats in watched.answers)
    held = max(stats.blocks.active + stats.blocks.reserved for _, stats in watched.answers)
    risen = rising + BALLOON.rise_seconds
    print(f"\n{len(records)} streams, {STREAMS} at once; at most {held} blocks held")
    for name, start, end in (
        ("before", began, rising),
        ("balloon rises", rising, risen),
        ("holds, falls", risen, gone),
        ("pool grows back", gone, calm),
        ("after", calm, ended),
    ):
        print(f"{name:16} {describe(records, start, end)}")

    def seconds(condition: Callable[[pb.GetStatsResponse], bool]) -> str:
        after = watched.first(rising, condition)
        return "never" if after is None else f"{after:.1f} s"

    print(
        f"from the start of the balloon: first precursor after "
        f"{seconds(lambda stats: stats.pressure > PressureLevel.NORMAL)}, pool below its size "
        f"after {seconds(lambda stats: stats.blocks.total < whole)}, 60 % taken after "
        f"{seconds(lambda stats: stats.memory.other_bytes >= full)}, first rung after "
        f"{seconds(lambda stats: stats.oom_rungs.retries_total > 0)}"
    )
    print(
        f"pool {whole} -> {lowest} -> {last.blocks.total} blocks, whole and NORMAL "
        f"{calm - gone:.1f} s after the balloon; {last.preemptions_total} preemptions; rungs: "
        f"{rungs.retries_total} retry, {rungs.shrinks_total} shrink, "
        f"{rungs.requeues_total} requeue, {rungs.failures_total} fail"
    )
    for (_, old), (at, new) in pairwise(watched.answers):
        if new.pressure != old.pressure:
            levels = PressureLevel(old.pressure), PressureLevel(new.pressure)
            print(f"{at - rising:6.1f} s  {levels[0].name} -> {levels[1].name}")


async def test_an_order_under_a_balloon_is_answered_with_what_is_in_force(
    server: LiveServer, references: list[Reference]
) -> None:
    async with client_of(server) as client:
        streams = streams_of(client)
        watched = Watched(client)
        whole = (await watched.look()).blocks.total
        ordered = whole * 3 // 4
        async with asyncio.TaskGroup() as group:
            live = group.create_task(streams.run(STREAMS))
            await inject(client, Balloon(share=BALLOON.share, rise_seconds=1, hold_seconds=600))
            await watched.until(lambda stats: stats.blocks.total < whole // 4)
            answer = await client.set_memory(pb.SetMemoryUtilizationRequest(total_blocks=ordered))
            assert 0 < answer.after.total < whole // 4
            under = len(watched.answers)
            assert (await watched.look()).governor.pool_ceiling_blocks == ordered
            await inject(client)
            await watched.until(lambda stats: is_calm(stats, ordered))
            streams.stop()
            await live
        back = await client.set_memory(pb.SetMemoryUtilizationRequest(total_blocks=whole))
    assert back.after.total == whole
    assert_undisturbed(streams.records, references)
    assert max(stats.blocks.total for _, stats in watched.answers[under:]) == ordered
    for _, stats in watched.answers:
        assert_adds_up(stats)
