"""However a call ends, its request is closed, exactly once, and the call is no longer counted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import grpc
import pytest
import structlog
from api_fakes import (
    ENDED,
    STARTED,
    ApiServer,
    FakeFront,
    FakeHandle,
    Step,
    api_server,
    forever,
    refused,
    words,
)

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.front.events import Delta, Progress

SLOW_READER_SECONDS = 0.5
FILL_SECONDS = 0.25  # for the windows of a connection to fill
DEADLINE_SECONDS = 2.0  # of calls that have long begun by then


@pytest.fixture
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    """Must not log anything: an ending that a client chooses is no failure of the server.

    It is patient with slow readers where a test does not say otherwise.
    """
    patience_seconds = getattr(request, "param", 3600.0)
    with structlog.testing.capture_logs() as records:
        async with api_server(FakeFront(), slow_reader_seconds=patience_seconds) as running:
            yield running
    assert records == []


async def closed(server: ApiServer) -> FakeHandle:
    """Waits until the only request is closed and its handler has returned."""
    (handle,) = server.front.handles
    await asyncio.wait_for(handle.done.wait(), 120)
    await asyncio.wait_for(server.ports.in_flight.wait_empty(), 120)
    await asyncio.sleep(0.05)  # a second close would come now
    return handle


async def admitted(server: ApiServer, count: int = 1) -> FakeHandle:
    while len(server.front.handles) < count:  # noqa: ASYNC110  the front has no such event
        await asyncio.sleep(0.01)
    return server.front.handles[0]


def flood() -> Iterator[Step]:
    """More output than the flow-control windows of a connection take."""
    yield STARTED
    while True:
        yield Progress([Delta(0, "x" * 65536)])


@pytest.mark.parametrize("streaming", [True, False])
async def test_normal_end(server: ApiServer, streaming: bool) -> None:
    if streaming:
        async for _ in server.stub.GenerateStream(pb.GenerateStreamRequest(text="x")):
            pass
    else:
        await server.stub.Generate(pb.GenerateRequest(text="x"))
    assert (await closed(server)).closed == 1


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("script", [[forever], [STARTED, forever]], ids=["queued", "running"])
async def test_cancelled_while_waiting_for_a_token(
    server: ApiServer, script: list[Step], streaming: bool
) -> None:
    server.front.script = lambda _: script
    call = (
        server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
        if streaming
        else server.stub.Generate(pb.GenerateRequest(text="x"))
    )
    waiting = asyncio.ensure_future(call.read() if streaming else call)  # type: ignore[attr-defined]
    assert (await admitted(server)).closed == 0
    call.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert (await closed(server)).closed == 1


@pytest.mark.parametrize("streaming", [True, False])
async def test_deadline_while_waiting_for_a_token(server: ApiServer, streaming: bool) -> None:
    server.front.script = lambda _: [STARTED, forever]
    if streaming:
        call = server.stub.GenerateStream(
            pb.GenerateStreamRequest(text="x"), timeout=DEADLINE_SECONDS
        )
        assert (await call.read()).HasField("start")
        failure = await refused(call.read())
    else:
        failure = await refused(
            server.stub.Generate(pb.GenerateRequest(text="x"), timeout=DEADLINE_SECONDS)
        )
    assert failure.code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await closed(server)).closed == 1


async def test_cancelled_while_blocked_in_a_write(server: ApiServer) -> None:
    server.front.script = lambda _: flood()
    call = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
    await call.read()
    await asyncio.sleep(FILL_SECONDS)  # the windows fill
    call.cancel()
    assert (await closed(server)).closed == 1


async def test_deadline_while_blocked_in_a_write(server: ApiServer) -> None:
    server.front.script = lambda _: flood()
    call = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"), timeout=DEADLINE_SECONDS)
    await call.read()
    assert (await closed(server)).closed == 1


async def test_connection_lost(server: ApiServer) -> None:
    server.front.script = lambda _: [STARTED, forever]
    async with grpc.aio.insecure_channel(
        server.ports.inference_address, options=[("grpc.use_local_subchannel_pool", 1)]
    ) as channel:
        method = channel.unary_stream("/plimsoll.v1.InferenceService/GenerateStream")
        call = method(pb.GenerateStreamRequest(text="x").SerializeToString())
        await call.read()
    assert (await closed(server)).closed == 1


@pytest.mark.parametrize("server", [SLOW_READER_SECONDS], indirect=True)
async def test_a_reader_that_is_too_slow_is_cut(server: ApiServer) -> None:
    server.front.script = lambda _: flood()
    call = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
    await call.read()
    handle = await admitted(server)
    # The request is closed while the client still does not read.
    await asyncio.wait_for(handle.done.wait(), 120)
    assert len(server.ports.in_flight) == 1

    async def read_the_rest() -> None:
        while await call.read() is not grpc.aio.EOF:
            pass

    refusal = await refused(read_the_rest())
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "SLOW_READER",
    )
    assert refusal.info is not None
    assert dict(refusal.info.metadata) == {"limit_seconds": "0.5"}
    assert (await closed(server)).closed == 1


async def test_a_stalled_stream_does_not_hold_up_its_neighbour(server: ApiServer) -> None:
    server.front.script = lambda call: flood() if call.salt else words("a", "b")
    stalled = pb.GenerateStreamRequest(text="x")
    stalled.options.cache.salt = "stall"
    call = server.stub.GenerateStream(stalled)
    await call.read()
    await asyncio.sleep(FILL_SECONDS)
    answer = await server.stub.Generate(pb.GenerateRequest(text="x"))
    assert answer.candidates[0].text == "ab"
    call.cancel()


async def test_server_stopped(server: ApiServer) -> None:
    server.front.script = lambda _: [STARTED, forever]
    call = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
    await call.read()
    await server.ports.inference.stop(0)
    assert (await closed(server)).closed == 1
    assert (await refused(call.read())).code is grpc.StatusCode.UNAVAILABLE


async def test_the_request_goes_away_while_the_prompt_is_tokenized(server: ApiServer) -> None:
    gate = asyncio.Event()
    encode = server.front.encode

    async def slow_encode(text: str, *, add_special_tokens: bool = True) -> list[int]:
        await gate.wait()
        return await encode(text, add_special_tokens=add_special_tokens)

    server.front.encode = slow_encode  # type: ignore[method-assign]
    call = server.stub.Generate(pb.GenerateRequest(text="x"), timeout=0.2)
    assert (await refused(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED
    gate.set()
    await asyncio.wait_for(server.ports.in_flight.wait_empty(), 120)
    assert server.front.handles == []


@pytest.mark.parametrize("streaming", [True, False])
async def test_events_without_an_end_are_never_ok(streaming: bool) -> None:
    front = FakeFront()
    front.script = lambda _: [STARTED]
    with structlog.testing.capture_logs() as records:
        async with api_server(front) as server:
            if streaming:
                call = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
                assert (await call.read()).HasField("start")
                failure = await refused(call.read())
            else:
                failure = await refused(server.stub.Generate(pb.GenerateRequest(text="x")))
            assert failure.reason == "INTERNAL"
            assert (await closed(server)).closed == 1
    assert [record["event"] for record in records] == ["call failed"]


async def test_calls_are_counted_while_they_run(server: ApiServer) -> None:
    gate = asyncio.Event()
    server.front.script = lambda _: [STARTED, gate.wait, ENDED]
    calls = [server.stub.Generate(pb.GenerateRequest(text="x")) for _ in range(3)]
    pending = [asyncio.ensure_future(call) for call in calls]
    await admitted(server, 3)
    assert len(server.ports.in_flight) == 3
    gate.set()
    await asyncio.gather(*pending)
    await asyncio.wait_for(server.ports.in_flight.wait_empty(), 120)
    assert len(server.ports.in_flight) == 0
