"""Streams outlive fifty engines, SIGKILLed at random moments: no token is lost, none differs."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
from checked_stream import CheckedStream, stream_request
from grpc_health.v1 import health_pb2, health_pb2_grpc
from live_server import LiveServer, serve

from service.api.gen.plimsoll.v1 import engine_admin_pb2 as admin_pb2
from service.api.gen.plimsoll.v1 import engine_admin_pb2_grpc as admin_pb2_grpc
from service.api.gen.plimsoll.v1 import inference_pb2, inference_pb2_grpc
from service.api.health import READINESS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

STREAMS = 16
KILLS = 50
SERVING = health_pb2.HealthCheckResponse.SERVING


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serve("--dtype", "float32", "--kv-blocks", "600") as live:
        yield live


def request(number: int) -> inference_pb2.GenerateStreamRequest:
    """Prompts and outputs of many lengths; greedy and sampling in turns."""
    moments = random.Random(number)
    prompt = f"{number} ways to cross the sea, " + "and back again, " * moments.randrange(8)
    return stream_request(
        prompt, moments.randrange(16, 48), temperature=float(number % 2), seed=1000 + number
    )


class Traffic:
    """Sixteen streams at any time: where one ends the next begins, until `last` is set."""

    def __init__(self, channel: grpc.aio.Channel, numbers: Iterator[int]) -> None:
        self._stub = inference_pb2_grpc.InferenceServiceStub(channel)
        self._numbers = numbers
        self.live: dict[int, CheckedStream] = {}
        self.outcomes: dict[int, tuple[str, list[int]]] = {}
        self.heard = asyncio.Event()  # a token, since somebody cleared it
        self.heard_seconds = 0.0  # when that was
        self.last = False

    async def run(self) -> None:
        await asyncio.gather(*(self._worker() for _ in range(STREAMS)))

    async def _worker(self) -> None:
        for number in self._numbers:
            stream = self.live[number] = CheckedStream(on_tokens=self._hear)
            self.outcomes[number] = await stream.read(self._stub, request(number))
            del self.live[number]
            if self.last:
                return

    def _hear(self) -> None:
        if not self.heard.is_set():
            self.heard_seconds = time.monotonic()
            self.heard.set()


class Killer:
    """Kills engines, every second one soon after its start, and times the recoveries.

    A new engine computes prompts and what was said so far, in one prefill or a few, before it
    says anything: so about half of the kills hit prefill and half decode. How long that takes
    is the machine's; "soon" is within half of what it took the engines so far.
    """

    def __init__(self, server: LiveServer, traffic: Traffic, readiness: AsyncIterator[bool]):
        self._server = server
        self._traffic = traffic
        self._readiness = readiness
        self._moments = random.Random(50)
        self._killed_seconds: float | None = None
        self._ready_seconds = time.monotonic()
        self._silent_seconds: list[float] = []  # from ready to the first token, by engine
        self.recovery_seconds: list[float] = []
        self.silent_engines = 0  # killed before a client had heard a token of them

    async def run(self) -> None:
        for number in range(KILLS):
            if number % 2:
                soon_seconds = statistics.median(self._silent_seconds) / 2
                await asyncio.sleep(self._moments.uniform(0.0, soon_seconds))
            else:
                await self._traffic.heard.wait()
                self._silent_seconds.append(self._traffic.heard_seconds - self._ready_seconds)
                await asyncio.sleep(self._moments.uniform(0.0, 1.5))
            await self._kill()
        await self._traffic.heard.wait()
        self._note_recovery()

    async def _kill(self) -> None:
        traffic = self._traffic
        assert len(traffic.live) == STREAMS
        if traffic.heard.is_set():
            self._note_recovery()
        else:
            self.silent_engines += 1
        self._killed_seconds = time.monotonic()
        self._server.engine.kill()
        await self._until(False)
        traffic.heard.clear()
        await self._until(True)
        self._ready_seconds = time.monotonic()

    async def _until(self, ready: bool) -> None:
        async for is_ready in self._readiness:
            if is_ready == ready:
                return

    def _note_recovery(self) -> None:
        if self._killed_seconds is not None:
            self.recovery_seconds.append(self._traffic.heard_seconds - self._killed_seconds)


async def readiness(channel: grpc.aio.Channel) -> AsyncIterator[bool]:
    watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service=READINESS)
    )
    async for answer in watch:
        yield answer.status == SERVING


async def test_fifty_kills(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    async with (
        grpc.aio.insecure_channel(server.address) as channel,
        grpc.aio.insecure_channel(server.admin_address) as admin_channel,
    ):
        disturbed = Traffic(channel, itertools.count())
        running = asyncio.create_task(disturbed.run())
        killer = Killer(server, disturbed, readiness(channel))
        await killer.run()
        disturbed.last = True
        await running
        undisturbed = Traffic(channel, iter(sorted(disturbed.outcomes)))
        await undisturbed.run()
        stats = await admin_pb2_grpc.EngineAdminServiceStub(admin_channel).GetStats(
            admin_pb2.GetStatsRequest()
        )

    with capsys.disabled():
        print(
            f"\n{KILLS} kills, {killer.silent_engines} before the first token; "
            f"{len(disturbed.outcomes)} streams; from a kill to the next token "
            f"{statistics.median(killer.recovery_seconds):.1f} s (median), "
            f"{max(killer.recovery_seconds):.1f} s (max)"
        )
    assert stats.engine_restarts_total == KILLS
    assert killer.silent_engines >= KILLS // 5
    differing = {
        number: (outcome, undisturbed.outcomes[number])
        for number, outcome in disturbed.outcomes.items()
        if outcome != undisturbed.outcomes[number]
    }
    assert not differing
    assert stats.blocks.active + stats.blocks.reserved == 0
    assert stats.running_requests + stats.waiting_requests == 0
