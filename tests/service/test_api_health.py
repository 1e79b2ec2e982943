"""grpc.health.v1, reflection and channelz, with the clients that their packages bring."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest
from api_fakes import ApiServer, FakeFront, api_server, refused
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from service.api.health import LIVENESS, READINESS, STARTUP

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server(FakeFront()) as running:
        yield running


def request(name: str) -> health_pb2.HealthCheckRequest:
    return health_pb2.HealthCheckRequest(service=name)


@pytest.mark.parametrize("port", ["channel", "admin_channel"])
@pytest.mark.parametrize("name", [LIVENESS, READINESS, STARTUP])
async def test_check(server: ApiServer, port: str, name: str) -> None:
    stub = health_pb2_grpc.HealthStub(getattr(server, port))
    assert (await stub.Check(request(name))).status == NOT_SERVING
    server.ports.health.set(name, True)
    assert (await stub.Check(request(name))).status == SERVING
    others = {LIVENESS, READINESS, STARTUP} - {name}
    for other in others:
        assert (await stub.Check(request(other))).status == NOT_SERVING


async def test_check_of_an_unknown_name(server: ApiServer) -> None:
    stub = health_pb2_grpc.HealthStub(server.channel)
    assert (await refused(stub.Check(request("other")))).code is grpc.StatusCode.NOT_FOUND


async def test_watch_stays_open_and_tells_changes(server: ApiServer) -> None:
    watch = health_pb2_grpc.HealthStub(server.channel).Watch(request(READINESS))
    seen = [(await watch.read()).status]
    for serving in (True, False, True):
        server.ports.health.set(READINESS, serving)
        seen.append((await watch.read()).status)
    assert seen == [NOT_SERVING, SERVING, NOT_SERVING, SERVING]
    watch.cancel()


async def test_watch_tells_only_changes_of_its_name(server: ApiServer) -> None:
    watch = health_pb2_grpc.HealthStub(server.channel).Watch(request(READINESS))
    await watch.read()
    server.ports.health.set(STARTUP, True)
    server.ports.health.set(READINESS, False)  # as it was
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.read(), 0.1)


async def test_a_watcher_that_leaves_takes_nobody_along(server: ApiServer) -> None:
    stub = health_pb2_grpc.HealthStub(server.channel)
    staying, leaving = stub.Watch(request(READINESS)), stub.Watch(request(READINESS))
    await staying.read()
    await leaving.read()
    leaving.cancel()
    await asyncio.sleep(0.05)
    server.ports.health.set(READINESS, True)
    assert (await asyncio.wait_for(staying.read(), 120)).status == SERVING
    staying.cancel()


async def test_watch_of_an_unknown_name_stays_open(server: ApiServer) -> None:
    watch = health_pb2_grpc.HealthStub(server.channel).Watch(request("other"))
    assert (await watch.read()).status == UNKNOWN
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(watch.read(), 0.1)


async def services(channel: grpc.aio.Channel) -> list[str]:
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    call = stub.ServerReflectionInfo(
        iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    )
    return sorted(service.name for service in (await call.read()).list_services_response.service)


async def test_reflection_lists_what_each_port_serves(server: ApiServer) -> None:
    assert await services(server.channel) == [
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
        "plimsoll.v1.InferenceService",
    ]
    assert "plimsoll.v1.EngineAdminService" in await services(server.admin_channel)
    assert "plimsoll.v1.InferenceService" not in await services(server.admin_channel)


async def test_reflection_can_be_off() -> None:
    async with api_server(FakeFront(), reflection=False) as server:
        refusal = await refused(services(server.channel))
        assert refusal.code is grpc.StatusCode.UNIMPLEMENTED


async def test_channelz_is_for_operators_only(server: ApiServer) -> None:
    stub = channelz_pb2_grpc.ChannelzStub(server.admin_channel)
    answer = await stub.GetServers(channelz_pb2.GetServersRequest())
    assert len(answer.server) >= 2
    stub = channelz_pb2_grpc.ChannelzStub(server.channel)
    refusal = await refused(stub.GetServers(channelz_pb2.GetServersRequest()))
    assert refusal.code is grpc.StatusCode.UNIMPLEMENTED
