"""A request that aborts the engine, on the real model: its neighbours say all they have to say."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import crashing_engine
import grpc
import pytest
import pytest_asyncio
from api_fakes import refused
from crashing_engine import DEADLY_TOKEN

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.server import Addresses, StopSignals, serve_front
from service.config import EngineSettings, ServeSettings
from service.front.front import Front
from service.front.state import FrontState

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STREAMS = 8
KILLER = 5
MAX_TOKENS = 24


@pytest_asyncio.fixture
async def server() -> AsyncIterator[tuple[Front, InferenceServiceStub]]:
    settings = ServeSettings(
        engine=EngineSettings(dtype="float32", kv_dtype="float32", kv_blocks=300, threads=2),
        port=0,
        admin_port=0,
        metrics_port=0,
    )
    front = Front(settings, engine_command=(sys.executable, crashing_engine.__file__))
    signals = StopSignals()
    ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_front(front, settings, signals, ready.set_result))
    try:
        await asyncio.wait({ready, task}, timeout=300, return_when=asyncio.FIRST_COMPLETED)
        async with grpc.aio.insecure_channel(ready.result().inference) as channel:
            yield front, InferenceServiceStub(channel)
    finally:
        signals.stop.set()
        signals.hurry.set()
        await asyncio.wait_for(task, 60)


def request(number: int, *, deadly: bool = False) -> pb.GenerateStreamRequest:
    made = pb.GenerateStreamRequest(request_id=f"r{number}")
    if deadly:
        made.token_ids.ids.extend([504, 253, DEADLY_TOKEN])
    else:
        made.text = f"{number} ways to cross the sea:"
    made.options.sampling.temperature = 0
    made.options.stopping.max_tokens = MAX_TOKENS
    return made


async def read(stub: InferenceServiceStub, asked: pb.GenerateStreamRequest) -> tuple[str, int]:
    """The text of a stream and its tokens; checks the grammar."""
    text, tokens, events = "", 0, []
    async for message in stub.GenerateStream(asked):
        events.append(message.WhichOneof("event"))
        text += "".join(delta.text for delta in message.deltas.deltas)
        tokens = message.end.usage.completion_tokens
    assert (events[0], events[-1]) == ("start", "end")
    assert set(events[1:-1]) <= {"deltas"}
    return text, tokens


async def test_one_killer_among_eight_streams(
    server: tuple[Front, InferenceServiceStub],
) -> None:
    front, stub = server
    innocent = [number for number in range(STREAMS) if number != KILLER]
    undisturbed = await asyncio.gather(*(read(stub, request(n)) for n in innocent))
    reading = [asyncio.create_task(read(stub, request(n))) for n in innocent[:KILLER]]
    killing = asyncio.create_task(
        refused(read(stub, request(KILLER, deadly=True)))  # type: ignore[arg-type]
    )
    reading += [asyncio.create_task(read(stub, request(n))) for n in innocent[KILLER:]]
    refusal = await killing
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.INTERNAL,
        "ENGINE_CRASHED_BY_REQUEST",
    )
    assert refusal.info is not None
    assert refusal.info.metadata["tokens_sent"] == "0"
    assert refusal.retry is None
    assert refusal.request_info is not None
    assert refusal.request_info.request_id == f"r{KILLER}"
    assert await asyncio.gather(*reading) == undisturbed
    assert front.stats().engine_restarts <= 4
    assert front.state is FrontState.READY
    assert await read(stub, request(0)) == undisturbed[0]
    stats = front.stats()
    assert (stats.failed_requests, stats.live_requests) == (1, 0)
