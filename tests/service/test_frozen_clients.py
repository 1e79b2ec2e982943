"""Clients that stop in the middle of a call: nobody waits for them, and in the end they are cut."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator

from api_stack import long_request, read_all, stack
from front_fakes import ENGINE, eventually
from scripted_engine import HOLD

SCRIPTED = (sys.executable, str(ENGINE))
# Opens a stream, says so, and waits for its end.
CLIENT = """
import sys, grpc
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
stub = InferenceServiceStub(grpc.insecure_channel(sys.argv[1]))
call = stub.GenerateStream(pb.GenerateStreamRequest(token_ids=pb.TokenIds(ids=[int(sys.argv[2])])))
next(call)
print("streaming", flush=True)
for _ in call: pass
"""


@contextlib.asynccontextmanager
async def frozen_client(address: str, mode: int) -> AsyncIterator[Process]:
    """A client process with a stream, stopped by SIGSTOP."""
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CLIENT, address, str(mode), stdout=PIPE
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"streaming\n"
    client.send_signal(signal.SIGSTOP)
    try:
        yield client
    finally:
        with contextlib.suppress(ProcessLookupError):
            client.kill()
        await client.wait()


async def test_keepalive_ends_the_calls_of_a_frozen_client() -> None:
    """No byte tells that it is frozen: its kernel still takes what is sent."""
    async with (
        stack(command=SCRIPTED, keepalive_seconds=1.0, keepalive_timeout_seconds=1.0) as server,
        frozen_client(server.address, HOLD),
    ):
        await eventually(lambda: server.front.stats().live_requests == 0)
        assert server.front.stats().engine_restarts == 0


async def test_a_frozen_client_holds_up_nobody() -> None:
    async with stack() as server, frozen_client(server.address, ord("a")):
        answers = await read_all(server.stub.GenerateStream(long_request()))
        assert answers[-1].HasField("end")


async def test_a_client_that_thaws_goes_on() -> None:
    """Frozen for less than all limits: it loses nothing."""
    async with stack() as server, frozen_client(server.address, ord("a")) as client:
        await asyncio.wait_for(server.settled(), 60)
        client.send_signal(signal.SIGCONT)
        assert await asyncio.wait_for(client.wait(), 30) == 0
