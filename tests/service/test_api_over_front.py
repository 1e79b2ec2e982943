"""The gRPC layer over the real front and a real engine process (without a model)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from api_fakes import refused
from toy_server import ENGINE_COMMAND, ToyTokenizer

from service.api.gen.plimsoll.v1 import engine_admin_pb2, inference_pb2
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.engine_admin_pb2_grpc import EngineAdminServiceStub
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.server import Addresses, StopSignals, serve_front
from service.config import EngineSettings, ServeSettings
from service.front.front import Front

STREAMS = 50


@dataclass
class Stack:
    """A server in a task of this process."""

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
async def stack(kv_blocks: int = 2000, **settings: object) -> AsyncIterator[Stack]:
    serve_settings = ServeSettings(
        engine=EngineSettings(model="toy", kv_blocks=kv_blocks),
        port=0,
        admin_port=0,
        allow_ignore_eos=True,
        **settings,  # type: ignore[arg-type]
    )
    front = Front(serve_settings, engine_command=ENGINE_COMMAND, tokenizer=ToyTokenizer())  # type: ignore[arg-type]
    signals = StopSignals()
    ready: asyncio.Future[Addresses] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve_front(front, serve_settings, signals, ready.set_result))
    try:
        await asyncio.wait({ready, task}, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        addresses = ready.result()
        async with (
            grpc.aio.insecure_channel(addresses.inference) as channel,
            grpc.aio.insecure_channel(addresses.admin) as admin_channel,
        ):
            yield Stack(
                task,
                signals,
                InferenceServiceStub(channel),
                EngineAdminServiceStub(admin_channel),
            )
    finally:
        signals.stop.set()
        signals.hurry.set()
        await asyncio.wait_for(task, 60)


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


@pytest.mark.slow
async def test_a_stop_lets_every_stream_end() -> None:
    async with stack() as server:
        calls = [server.stub.GenerateStream(long_request()) for _ in range(STREAMS)]
        for call in calls:
            assert (await call.read()).HasField("start")

        server.signals.signalled()
        ends = [asyncio.ensure_future(read_all(call)) for call in calls]
        refusal = await refused(server.stub.Generate(pb.GenerateRequest(text="x")))
        assert refusal.reason == "DRAINING"
        assert not any(end.done() for end in ends)
        for answers in await asyncio.gather(*ends):
            assert answers[-1].WhichOneof("event") == "end"
            tokens = sum(len(d.token_ids) for answer in answers for d in answer.deltas.deltas)
            assert tokens == answers[-1].end.usage.completion_tokens == 400
        await asyncio.wait_for(server.task, 30)


async def test_what_clients_do_to_each_other_and_themselves() -> None:
    async with stack() as server:
        first = server.stub.GenerateStream(long_request("r1", tokens=4000))
        assert (await first.read()).HasField("start")
        second = await refused(server.stub.GenerateStream(long_request("r1")).read())
        assert (second.code, second.reason) == (
            grpc.StatusCode.ALREADY_EXISTS,
            "REQUEST_ID_IN_USE",
        )

        ids = ["r1", "unknown"]
        foreign = await server.stub.AbortRequests(
            inference_pb2.AbortRequestsRequest(request_ids=ids),
            metadata=[("x-tenant-id", "other")],
        )
        assert list(foreign.unknown_ids) == ids
        answer = await server.stub.AbortRequests(
            inference_pb2.AbortRequestsRequest(request_ids=ids, reason="why")
        )
        assert (list(answer.aborted_ids), list(answer.unknown_ids)) == (["r1"], ["unknown"])
        assert (await refused(read_all(first))).reason == "ABORTED_BY_ADMIN"

        # The id is free again; a client that cancels, and one that is late, leave nothing behind.
        cancelled = server.stub.GenerateStream(long_request("r1", tokens=4000))
        await cancelled.read()
        cancelled.cancel()
        late = server.stub.GenerateStream(long_request(tokens=4000), timeout=0.3)
        assert (await refused(read_all(late))).code is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(server.settled(), 30)


async def test_a_prompt_that_the_pool_can_never_hold() -> None:
    async with stack(kv_blocks=4) as server:
        refusal = await refused(server.stub.Generate(pb.GenerateRequest(text="x" * 1000)))
        assert (refusal.code, refusal.reason) == (
            grpc.StatusCode.FAILED_PRECONDITION,
            "EXCEEDS_CACHE_CAPACITY",
        )
        assert refusal.info is not None
        assert dict(refusal.info.metadata) == {
            "prompt_tokens": "1000",
            "needed_blocks": "63",
            "total_blocks": "4",
            "limit_tokens": "64",
        }
        await asyncio.wait_for(server.settled(), 30)


async def test_a_full_queue_tells_when_to_come_back() -> None:
    async with stack(max_live_requests=1) as server:
        first = server.stub.GenerateStream(long_request(tokens=4000))
        await first.read()
        refusal = await refused(server.stub.GenerateStream(long_request()).read())
        assert (refusal.code, refusal.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUEUE_FULL",
        )
        assert int(refusal.trailers["grpc-retry-pushback-ms"]) > 0
        first.cancel()
