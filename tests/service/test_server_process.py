"""Signals to a whole server: its own process, its engine process, and its clients."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import psutil
import pytest
from api_fakes import refused
from grpc_health.v1 import health_pb2, health_pb2_grpc
from paced_engine import Pace
from toy_server import ToyServer, toy_server

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.health import LIVENESS, READINESS

STREAMS = 50
TOKENS = 400
LIMIT_SECONDS = 200.0

Stream = grpc.aio.UnaryStreamCall[pb.GenerateStreamRequest, pb.GenerateStreamResponse]


def engine_of(server: ToyServer) -> psutil.Process:
    (engine,) = psutil.Process(server.process.pid).children()
    return engine


async def started(stub: InferenceServiceStub, count: int, tokens: int) -> list[Stream]:
    """Streams that are in the batch."""
    request = pb.GenerateStreamRequest(text="hello")
    request.options.sampling.temperature = 0
    request.options.stopping.max_tokens = tokens
    request.options.stopping.ignore_eos = True
    request.options.output.token_ids = True
    streams = [stub.GenerateStream(request) for _ in range(count)]
    for stream in streams:
        assert (await stream.read()).HasField("start")
    return streams


async def rest(stream: Stream) -> list[pb.GenerateStreamResponse]:
    answers = []
    while (answer := await stream.read()) is not grpc.aio.EOF:
        answers.append(answer)
    return answers


async def until_not_ready(channel: grpc.aio.Channel) -> AsyncIterator[int]:
    """Yields when the server has said that it is ready, and when it is so no more."""
    watch = health_pb2_grpc.HealthStub(channel).Watch(
        health_pb2.HealthCheckRequest(service=READINESS)
    )
    status = health_pb2.HealthCheckResponse
    for expected in (status.SERVING, status.NOT_SERVING):
        assert (await watch.read()).status == expected
        yield expected
    watch.cancel()


@pytest.mark.slow
def test_the_engine_dies_with_a_killed_front(tmp_path: Path) -> None:
    with toy_server(tmp_path) as server:
        engine = engine_of(server)
        server.kill()
        _, alive = psutil.wait_procs([engine], timeout=LIMIT_SECONDS)
        assert not alive


@pytest.mark.slow
async def test_sigterm_lets_fifty_streams_end(tmp_path: Path) -> None:
    paced = ("--paced-in", str(tmp_path))
    pace = Pace(tmp_path)
    with toy_server(tmp_path, "--kv-blocks", "2000", "--grace-seconds", "600", *paced) as server:
        engine = engine_of(server)
        async with grpc.aio.insecure_channel(server.address) as channel:
            stub = InferenceServiceStub(channel)
            readiness = until_not_ready(channel)
            await anext(readiness)
            streams = await started(stub, STREAMS, TOKENS)

            server.process.send_signal(signal.SIGTERM)
            await anext(readiness)
            ends = [asyncio.ensure_future(rest(stream)) for stream in streams]
            refusal = await refused(stub.Generate(pb.GenerateRequest(text="x")))
            assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
            alive = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=LIVENESS)
            )
            assert alive.status == health_pb2.HealthCheckResponse.SERVING
            assert not any(end.done() for end in ends), "not ready comes before the drain"
            pace.let_go()
            for answers in await asyncio.gather(*ends):
                assert answers[-1].HasField("end")
                tokens = sum(len(d.token_ids) for answer in answers for d in answer.deltas.deltas)
                assert tokens == TOKENS
        assert await asyncio.to_thread(server.process.wait, LIMIT_SECONDS) == 0
        assert not engine.is_running()


@pytest.mark.parametrize("second_signal", [True, False], ids=["second SIGTERM", "grace over"])
async def test_a_stop_does_not_wait_for_ever(tmp_path: Path, second_signal: bool) -> None:
    grace = "3600" if second_signal else "0.2"
    paced = ("--paced-in", str(tmp_path))
    Pace(tmp_path)
    with toy_server(tmp_path, "--kv-blocks", "2000", "--grace-seconds", grace, *paced) as server:
        engine = engine_of(server)
        async with grpc.aio.insecure_channel(server.address) as channel:
            readiness = until_not_ready(channel)
            await anext(readiness)
            streams = await started(InferenceServiceStub(channel), 8, 4000)
            server.process.send_signal(signal.SIGTERM)
            await anext(readiness)
            if second_signal:
                server.process.send_signal(signal.SIGTERM)
            for stream in streams:
                refusal = await refused(rest(stream))
                assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert await asyncio.to_thread(server.process.wait, LIMIT_SECONDS) == 0
        assert not engine.is_running()
