"""API, front and an engine process (without a model) in the process of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

import grpc
from toy_server import ENGINE_COMMAND, ToyTokenizer

from service.api.gen.plimsoll.v1 import engine_admin_pb2
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.engine_admin_pb2_grpc import EngineAdminServiceStub
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.server import Addresses, StopSignals, serve_front
from service.config import EngineSettings, ServeSettings
from service.front.front import Front


@dataclass
class Stack:
    """A server in a task of this process."""

    front: Front
    address: str
    metrics_address: str
    task: asyncio.Task[None]
    signals: StopSignals
    stub: InferenceServiceStub
    admin: EngineAdminServiceStub

    async def settled(self) -> engine_admin_pb2.GetStatsResponse:
        """Statistics when no request holds a block any more."""
        while True:
            stats = await self.admin.GetStats(engine_admin_pb2.GetStatsRequest())
            if stats.blocks.active + stats.blocks.reserved == 0 and stats.blocks.total:
                return stats
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def stack(
    kv_blocks: int = 2000, command: Sequence[str] = ENGINE_COMMAND, **settings: object
) -> AsyncIterator[Stack]:
    """A server that is ready; `settings` are those of ServeSettings."""
    settings.setdefault("allow_ignore_eos", True)
    serve_settings = ServeSettings(
        engine=EngineSettings(model="toy", kv_blocks=kv_blocks),
        port=0,
        admin_port=0,
        metrics_port=0,
        **settings,  # type: ignore[arg-type]
    )
    front = Front(serve_settings, engine_command=command, tokenizer=ToyTokenizer())  # type: ignore[arg-type]
    signals = StopSignals()
    ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_front(front, serve_settings, signals, ready.set_result))
    try:
        await asyncio.wait({ready, task}, timeout=200, return_when=asyncio.FIRST_COMPLETED)
        addresses = ready.result()
        async with (
            grpc.aio.insecure_channel(addresses.inference) as channel,
            grpc.aio.insecure_channel(addresses.admin) as admin_channel,
        ):
            yield Stack(
                front,
                addresses.inference,
                addresses.metrics,
                task,
                signals,
                InferenceServiceStub(channel),
                EngineAdminServiceStub(admin_channel),
            )
    finally:
        signals.stop.set()
        signals.hurry.set()
        await asyncio.wait_for(task, 200)


def long_request(request_id: str = "", tokens: int = 400) -> pb.GenerateStreamRequest:
    return pb.GenerateStreamRequest(
        text="hello",
        request_id=request_id,
        options=pb.GenerationOptions(
            sampling=pb.SamplingParams(temperature=0),
            stopping=pb.StopConditions(max_tokens=tokens, ignore_eos=True),
            output=pb.OutputOptions(token_ids=True),
        ),
    )


async def read_all(call: grpc.aio.UnaryStreamCall[object, object]) -> list[object]:
    answers = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        answers.append(answer)
    return answers
