"""The gRPC layer over the real front and a real engine process (without a model)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest
from api_fakes import refused
from api_stack import long_request, read_all, stack
from paced_engine import Pace, paced_command

from service.api.gen.plimsoll.v1 import inference_pb2
from service.api.gen.plimsoll.v1 import inference_pb2 as pb

STREAMS = 50


@pytest.mark.slow
async def test_a_stop_lets_every_stream_end(tmp_path: Path) -> None:
    pace = Pace(tmp_path)
    async with stack(command=paced_command(tmp_path), grace_seconds=600.0) as server:
        calls = [server.stub.GenerateStream(long_request()) for _ in range(STREAMS)]
        for call in calls:
            assert (await call.read()).HasField("start")

        server.signals.signalled()
        ends = [asyncio.ensure_future(read_all(call)) for call in calls]
        refusal = await refused(server.stub.Generate(pb.GenerateRequest(text="x")))
        assert refusal.reason == "DRAINING"
        assert not any(end.done() for end in ends)
        pace.let_go()
        for answers in await asyncio.gather(*ends):
            assert answers[-1].WhichOneof("event") == "end"
            tokens = sum(len(d.token_ids) for answer in answers for d in answer.deltas.deltas)
            assert tokens == answers[-1].end.usage.completion_tokens == 400
        await asyncio.wait_for(server.task, 120)


async def test_what_clients_do_to_each_other_and_themselves(tmp_path: Path) -> None:
    Pace(tmp_path)
    async with stack(command=paced_command(tmp_path)) as server:
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
        await asyncio.wait_for(server.settled(), 120)  # an idle engine takes everybody
        late = server.stub.GenerateStream(long_request(tokens=4000), timeout=0.3)
        assert (await refused(read_all(late))).code is grpc.StatusCode.DEADLINE_EXCEEDED
        await asyncio.wait_for(server.settled(), 120)


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
        await asyncio.wait_for(server.settled(), 120)


async def test_a_full_queue_tells_when_to_come_back(tmp_path: Path) -> None:
    Pace(tmp_path)
    async with stack(command=paced_command(tmp_path), max_live_requests=1) as server:
        first = server.stub.GenerateStream(long_request(tokens=4000))
        await first.read()
        refusal = await refused(server.stub.GenerateStream(long_request()).read())
        assert (refusal.code, refusal.reason) == (
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "QUEUE_FULL",
        )
        assert int(refusal.trailers["grpc-retry-pushback-ms"]) > 0
        first.cancel()
