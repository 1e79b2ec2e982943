"""EngineAdminService over its own port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import pytest
from api_fakes import ApiServer, FakeFront, api_server, refused
from google.protobuf.duration_pb2 import Duration

from kvcache import FlushResult
from kvcache.pressure import PressureLevel
from service.api.admin_servicer import beats
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.front.admin_actions import AdminAction
from service.front.events import NotReady
from service.front.state import FrontState
from service.front.watched import Watched


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server(FakeFront()) as running:
        yield running


async def test_get_stats(server: ApiServer) -> None:
    answer = await server.admin.GetStats(pb.GetStatsRequest())
    assert (answer.blocks.total, answer.running_requests) == (40, 5)


async def test_flush_all_or_one_namespace(server: ApiServer) -> None:
    answer = await server.admin.FlushCache(pb.FlushCacheRequest())
    assert (answer.dropped_blocks, answer.kept_blocks) == (11, 4)
    await server.admin.FlushCache(pb.FlushCacheRequest(tenant="acme", salt="s"))
    assert server.front.log == ["flush None ''", "flush 'acme' 's'"]
    assert server.front.orders == [AdminAction.FLUSH, AdminAction.FLUSH]


async def test_drain_and_resume(server: ApiServer) -> None:
    answer = await server.admin.Drain(pb.DrainRequest(grace=Duration(nanos=500_000_000)))
    assert (answer.completed_requests, answer.aborted_requests) == (3, 1)
    assert (await server.admin.GetStats(pb.GetStatsRequest())).draining
    await server.admin.Resume(pb.ResumeRequest())
    await server.admin.Drain(pb.DrainRequest())
    await server.admin.Drain(pb.DrainRequest(grace=Duration()))
    assert server.front.log == [
        "drain 0.5",
        "drained",
        "resume",
        "drain None",
        "drained",
        "drain 0.0",
        "drained",
    ]
    drain, resume = AdminAction.DRAIN, AdminAction.RESUME
    assert server.front.orders == [drain, resume, drain, drain]


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda s: s.Drain(pb.DrainRequest(grace=Duration(seconds=-1))), "grace"),
        (lambda s: s.Drain(pb.DrainRequest(grace=Duration(seconds=86401))), "grace"),
        (lambda s: s.FlushCache(pb.FlushCacheRequest(salt="s" * 129)), "salt"),
        (lambda s: s.FlushCache(pb.FlushCacheRequest(tenant="t" * 65)), "tenant"),
        (lambda s: s.FlushCache(pb.FlushCacheRequest(tenant="é")), "tenant"),
        *(
            (
                lambda s, heartbeat=heartbeat: s.WatchPressure(
                    pb.WatchPressureRequest(heartbeat=heartbeat)
                ).read(),
                "heartbeat",
            )
            for heartbeat in (Duration(nanos=99_000_000), Duration(seconds=61), Duration())
        ),
    ],
)
async def test_limits(
    server: ApiServer, call: Callable[[object], Awaitable[object]], path: str
) -> None:
    refusal = await refused(call(server.admin))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refusal.fields) == [path]
    assert server.front.log == server.front.orders == []


async def test_an_engine_that_is_away(server: ApiServer) -> None:
    async def flush(**_: object) -> FlushResult:
        raise NotReady

    server.front.flush = flush  # type: ignore[method-assign]
    assert (await refused(server.admin.FlushCache(pb.FlushCacheRequest()))).reason == "NOT_READY"


async def test_pressure_now_then_each_change(server: ApiServer) -> None:
    watch = server.admin.WatchPressure(pb.WatchPressureRequest(heartbeat=Duration(seconds=60)))
    assert (await watch.read()).level == pb.PRESSURE_LEVEL_NORMAL
    server.front.pressure.set(PressureLevel.HIGH)
    assert (await watch.read()).level == pb.PRESSURE_LEVEL_HIGH
    server.front.pressure.set(PressureLevel.CRITICAL)
    assert (await watch.read()).level == pb.PRESSURE_LEVEL_CRITICAL
    watch.cancel()


async def test_pressure_heartbeat(server: ApiServer) -> None:
    heartbeat = Duration(nanos=100_000_000)
    watch = server.admin.WatchPressure(pb.WatchPressureRequest(heartbeat=heartbeat))
    levels = [(await watch.read()).level for _ in range(4)]
    assert levels == [pb.PRESSURE_LEVEL_NORMAL] * 4
    watch.cancel()


async def test_beats_end_their_source() -> None:
    """A watch that ends must not leave a task that waits for the next change."""
    value = Watched(1)
    before = len(asyncio.all_tasks())
    ticks = beats(value.changes(), 60)
    await anext(ticks)
    assert len(asyncio.all_tasks()) == before + 1
    await ticks.aclose()
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == before


async def test_what_clients_call_is_not_on_this_port(server: ApiServer) -> None:
    call = server.admin_channel.unary_unary("/plimsoll.v1.InferenceService/Generate")
    assert (await refused(call(b""))).code is grpc.StatusCode.UNIMPLEMENTED


async def test_draining_is_visible_to_clients(server: ApiServer) -> None:
    server.front.states.set(FrontState.DRAINING)
    assert (await server.admin.GetStats(pb.GetStatsRequest())).draining
