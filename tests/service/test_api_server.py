"""The life of a server: ports before the model, health in step, a stop in order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import pytest
from api_fakes import ENDED, MODEL, STARTED, FakeFront, forever, refused, words
from front_fakes import let_time_pass
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.api.gen.plimsoll.v1 import engine_admin_pb2
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.engine_admin_pb2_grpc import EngineAdminServiceStub
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.health import LIVENESS, READINESS, STARTUP
from service.api.ports import BindError, Ports, open_ports
from service.api.server import Addresses, StopSignals, serve_front
from service.config import ServeSettings
from service.front.state import EngineFailed, FrontState

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Running:
    """A server in a task of this process, and clients of both ports."""

    front: FakeFront
    signals: StopSignals
    task: asyncio.Task[None]
    ready: list[Addresses]
    channel: grpc.aio.Channel
    admin_channel: grpc.aio.Channel
    ports: Ports

    @property
    def stub(self) -> InferenceServiceStub:
        return InferenceServiceStub(self.channel)

    async def health(self, name: str, port: str = "channel") -> int:
        stub = health_pb2_grpc.HealthStub(getattr(self, port))
        return (await stub.Check(health_pb2.HealthCheckRequest(service=name))).status

    def watch(self, name: str) -> grpc.aio.UnaryStreamCall[object, object]:
        stub = health_pb2_grpc.HealthStub(self.admin_channel)
        return stub.Watch(health_pb2.HealthCheckRequest(service=name))


@contextlib.asynccontextmanager
async def running(
    front: FakeFront, monkeypatch: pytest.MonkeyPatch, **settings: object
) -> AsyncIterator[Running]:
    """The addresses come from the ports, which are open before the front is ready."""
    opened: list[Ports] = []

    def open_and_note(*args: object, **kwargs: object) -> Ports:
        ports = open_ports(*args, **kwargs)  # type: ignore[arg-type]
        opened.append(ports)
        return ports

    monkeypatch.setattr("service.api.server.open_ports", open_and_note)
    signals, ready = StopSignals(), []
    serve_settings = ServeSettings(port=0, admin_port=0, metrics_port=0, **settings)  # type: ignore[arg-type]
    task = asyncio.create_task(
        serve_front(front, serve_settings, signals, ready.append)  # type: ignore[arg-type]
    )
    while not opened and not task.done():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    async with (
        grpc.aio.insecure_channel(opened[0].inference_address) as channel,
        grpc.aio.insecure_channel(opened[0].admin_address) as admin_channel,
    ):
        try:
            yield Running(front, signals, task, ready, channel, admin_channel, opened[0])
        finally:
            signals.stop.set()
            signals.hurry.set()
            await asyncio.wait([task], timeout=120)
            task.cancel()


async def events(call: grpc.aio.UnaryStreamCall[object, object]) -> list[str]:
    """The kinds of the messages that are left."""
    kinds = []
    while (answer := await call.read()) is not grpc.aio.EOF:
        kinds.append(answer.WhichOneof("event"))
    return kinds


async def serving(server: Running) -> grpc.aio.UnaryStreamCall[object, object]:
    """A watch of readiness that has seen it."""
    watch = server.watch(READINESS)
    while (await watch.read()).status != SERVING:
        pass
    return watch


def loading_front() -> FakeFront:
    front = FakeFront()
    front.states.set(FrontState.STARTING)
    front.model = None
    return front


async def test_ports_are_open_before_the_model_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front = loading_front()
    async with running(front, monkeypatch) as server:
        assert await server.health(LIVENESS) == SERVING
        assert await server.health(READINESS) == NOT_SERVING
        assert await server.health(STARTUP) == NOT_SERVING
        refusal = await refused(server.stub.Generate(pb.GenerateRequest(text="x")))
        assert refusal.reason == "NOT_READY"
        assert server.ready == []

        watch = server.watch(READINESS)
        await watch.read()
        front.model = MODEL
        front.states.set(FrontState.READY)
        assert (await watch.read()).status == SERVING
        assert await server.health(STARTUP) == SERVING
        assert len(server.ready) == 1
        await server.stub.Generate(pb.GenerateRequest(text="x"))


async def test_a_restart_is_not_ready_but_alive_and_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front = FakeFront()
    async with running(front, monkeypatch) as server:
        watch = await serving(server)
        front.states.set(FrontState.RESTARTING)
        assert (await watch.read()).status == NOT_SERVING
        assert await server.health(LIVENESS) == SERVING
        assert await server.health(STARTUP) == SERVING
        front.states.set(FrontState.READY)
        assert (await watch.read()).status == SERVING
        assert len(server.ready) == 1


async def test_a_stop_drains_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    front = FakeFront()
    gate = asyncio.Event()
    front.script = lambda _: [STARTED, gate.wait, *words("the end")[1:]]
    front.drain_gate.clear()
    async with running(front, monkeypatch, grace_seconds=12.5) as server:
        watch = await serving(server)
        live = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
        assert (await live.read()).HasField("start")

        server.signals.signalled()
        assert (await watch.read()).status == NOT_SERVING
        refusal = await refused(server.stub.Generate(pb.GenerateRequest(text="x")))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "DRAINING")
        assert await server.health(LIVENESS) == SERVING
        admin = EngineAdminServiceStub(server.admin_channel)
        assert (await admin.GetStats(engine_admin_pb2.GetStatsRequest())).draining

        gate.set()
        assert await events(live) == ["deltas", "deltas", "end"]
        assert not server.task.done()
        front.drain_gate.set()
        await asyncio.wait_for(server.task, 120)
    assert front.log == ["start", "drain 12.5", "drained", "stop"]


async def test_new_calls_are_answered_until_load_balancers_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front = FakeFront()
    async with running(front, monkeypatch, endpoint_removal_seconds=600.0) as server:
        watch = await serving(server)
        server.signals.signalled()
        await watch.read()
        while "drained" not in front.log:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        refusal = await refused(server.stub.Generate(pb.GenerateRequest(text="x")))
        assert refusal.reason == "DRAINING"
        assert not server.task.done()
        let_time_pass(600.0)
        await asyncio.wait_for(server.task, 120)
        refusal = await refused(server.stub.Generate(pb.GenerateRequest(text="x")))
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, None)


async def test_a_second_signal_cuts_the_drain_short(monkeypatch: pytest.MonkeyPatch) -> None:
    front = FakeFront()
    front.script = lambda _: [STARTED, forever]
    front.drain_gate.clear()
    stop = front.stop

    async def stop_and_note() -> None:
        front.log.append(f"{len(server.ports.in_flight)} calls")
        await stop()

    front.stop = stop_and_note  # type: ignore[method-assign]
    async with running(front, monkeypatch) as server:
        watch = await serving(server)
        live = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
        await live.read()
        server.signals.signalled()
        await watch.read()
        server.signals.signalled()
        await asyncio.wait_for(server.task, 120)
        assert (await refused(live.read())).code is grpc.StatusCode.UNAVAILABLE
    # stop() of gRPC returns before the handlers of the calls that it cut have ended.
    assert front.log[-5:] == ["drain 30.0", "drain 0.0", "drained", "0 calls", "stop"]
    assert [handle.closed for handle in front.handles] == [1]


async def test_the_engine_stops_after_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drain of the front is over when its requests are, the calls a moment later."""
    front = FakeFront()
    gate = asyncio.Event()
    front.script = lambda _: [STARTED, gate.wait, ENDED]
    stop = front.stop

    async def stop_and_note() -> None:
        front.log.append(f"closed {front.handles[0].closed}")
        await stop()

    front.stop = stop_and_note  # type: ignore[method-assign]
    async with running(front, monkeypatch) as server:
        watch = await serving(server)
        live = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
        await live.read()
        server.signals.signalled()
        await watch.read()
        asyncio.get_running_loop().call_later(0.2, gate.set)
        assert await events(live) == ["end"]
        await asyncio.wait_for(server.task, 120)
    assert front.log[-2:] == ["closed 1", "stop"]


async def test_an_engine_that_failed_ends_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    front = loading_front()
    async with running(front, monkeypatch) as server:
        assert await server.health(LIVENESS) == SERVING
        front.states.set(FrontState.FAILED)
        with pytest.raises(EngineFailed, match="told to fail"):
            await asyncio.wait_for(server.task, 120)
    assert front.log == ["start", "stop"]


async def test_files_that_cannot_be_read_end_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front = loading_front()

    async def start() -> None:
        raise FileNotFoundError("no such model")

    front.start = start  # type: ignore[method-assign]
    async with running(front, monkeypatch) as server:
        with pytest.raises(FileNotFoundError, match="no such model"):
            await asyncio.wait_for(server.task, 120)
    assert front.log == ["stop"]


async def test_a_signal_while_the_model_loads_ends_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    front = loading_front()
    async with running(front, monkeypatch) as server:
        server.signals.signalled()
        await asyncio.wait_for(server.task, 120)
    assert front.log[-1] == "stop"
    assert server.ready == []


@pytest.mark.parametrize("setting", ["port", "admin_port"])
async def test_a_taken_port_is_named(setting: str) -> None:
    front = FakeFront()
    first = open_ports(front, ServeSettings(port=0, admin_port=0), "here")  # type: ignore[arg-type]
    await first.inference.start()
    taken = int(first.inference_address.rsplit(":", 1)[1])
    ports = {"port": 0, "admin_port": 0, setting: taken}
    with pytest.raises(BindError, match=f"{setting}: cannot listen on 127.0.0.1:{taken}"):
        open_ports(front, ServeSettings(**ports), "here")  # type: ignore[arg-type]
    await first.inference.stop(0)


async def test_signals_of_the_system() -> None:
    signals = StopSignals()
    signals.install()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(signals.stop.wait(), 120)
        assert not signals.hurry.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(signals.hurry.wait(), 120)
    finally:
        signals.remove()
