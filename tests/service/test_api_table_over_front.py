"""The rows of the error table that `test_api_over_front` has no story for, on the real stack."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import grpc
import pytest
from api_fakes import refused
from api_stack import long_request, read_all, stack
from front_fakes import ENGINE, eventually
from scripted_engine import FAIL
from toy_server import ToyTokenizer

from service.api.errors import INTERNAL_MESSAGE
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.ports import open_ports
from service.config import EngineSettings, ServeSettings
from service.front.front import Front
from service.front.state import EngineFailed

Code = grpc.StatusCode
# Else the client's library takes in megabytes before its reader asks for them.
SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 4096)]
SCRIPTED = (sys.executable, str(ENGINE))


def generate(**fields: Any) -> pb.GenerateRequest:
    return pb.GenerateRequest(**{"text": "x", **fields})


async def test_what_is_refused_before_the_front() -> None:
    rows: list[tuple[pb.GenerateRequest, Code, str]] = [
        (
            generate(options=pb.GenerationOptions(priority=101)),
            Code.INVALID_ARGUMENT,
            "INVALID_FIELD",
        ),
        (generate(text="x" * 4096), Code.INVALID_ARGUMENT, "CONTEXT_LENGTH_EXCEEDED"),
        (generate(model="other"), Code.NOT_FOUND, "MODEL_NOT_FOUND"),
        (
            generate(options=pb.GenerationOptions(stopping=pb.StopConditions(ignore_eos=True))),
            Code.UNIMPLEMENTED,
            "FEATURE_DISABLED",
        ),
        (
            generate(options=pb.GenerationOptions(constraint=pb.OutputConstraint(regex="a+"))),
            Code.UNIMPLEMENTED,
            "FEATURE_DISABLED",
        ),
    ]
    async with stack(allow_ignore_eos=False, max_request_bytes=8192) as server:
        for request, code, reason in rows:
            refusal = await refused(server.stub.Generate(request))
            assert (refusal.code, refusal.reason) == (code, reason)
        refusal = await refused(server.stub.Generate(generate(text="x" * 9000)))
        assert (refusal.code, refusal.reason) == (Code.RESOURCE_EXHAUSTED, None)
        assert server.front.stats().rejected_requests == 0
        assert server.front.stats().live_requests == 0


async def test_a_model_that_fails() -> None:
    async with stack(command=SCRIPTED) as server:
        engine = server.front.engine_process_id
        request = generate(text="", token_ids=pb.TokenIds(ids=[FAIL]), request_id="mine")
        refusal = await refused(server.stub.Generate(request))
        assert (refusal.code, refusal.reason) == (Code.INTERNAL, "INTERNAL")
        assert refusal.message == INTERNAL_MESSAGE
        assert refusal.request_info is not None
        assert refusal.request_info.request_id == "mine"
        assert server.front.engine_process_id == engine


async def test_a_client_that_does_not_read() -> None:
    async with (
        stack(slow_reader_seconds=2.0) as server,
        grpc.aio.insecure_channel(server.address, SMALL_WINDOW) as channel,
    ):
        request = long_request(tokens=4000)
        request.options.output.logprobs = 20
        slow = InferenceServiceStub(channel).GenerateStream(request)
        assert (await slow.read()).HasField("start")
        other = await read_all(server.stub.GenerateStream(long_request()))
        assert other[-1].HasField("end"), "nobody else waits for it"
        await asyncio.wait_for(server.settled(), 200)
        refusal = await refused(read_all(slow))
        assert (refusal.code, refusal.reason) == (Code.RESOURCE_EXHAUSTED, "SLOW_READER")
        assert refusal.info is not None
        assert refusal.info.metadata["limit_seconds"] == "2"


async def test_an_engine_that_is_lost_for_good() -> None:
    """UNAVAILABLE while the client has seen nothing, ABORTED when it has."""
    with pytest.raises(EngineFailed):  # noqa: PT012
        async with stack(restart_limit=0, max_waiting_requests=10) as server:
            streaming = server.stub.GenerateStream(long_request(tokens=4000))
            while not (await streaming.read()).deltas.deltas:
                pass
            engine = server.front.engine_process_id
            assert engine is not None
            os.kill(engine, signal.SIGSTOP)  # so that the next one has no token
            waiting = server.stub.GenerateStream(long_request())
            await eventually(lambda: server.front.stats().live_requests == 2)
            os.kill(engine, signal.SIGKILL)
            refusal = await refused(waiting.read())
            assert (refusal.code, refusal.reason) == (Code.UNAVAILABLE, "ENGINE_LOST")
            assert refusal.retry is not None
            refusal = await refused(read_all(streaming))
            assert (refusal.code, refusal.reason) == (Code.ABORTED, "ENGINE_LOST")
            assert refusal.info is not None
            assert int(refusal.info.metadata["tokens_sent"]) > 0


async def test_before_the_model_is_loaded() -> None:
    settings = ServeSettings(engine=EngineSettings(model="scripted"), port=0, admin_port=0)
    command = (*SCRIPTED, "--hang-at-start")
    front = Front(settings, engine_command=command, tokenizer=ToyTokenizer())  # type: ignore[arg-type]
    ports = open_ports(front, settings, served_by="test")
    await ports.inference.start()
    await front.start()
    try:
        async with grpc.aio.insecure_channel(ports.inference_address) as channel:
            refusal = await refused(InferenceServiceStub(channel).Generate(generate()))
            assert (refusal.code, refusal.reason) == (Code.UNAVAILABLE, "NOT_READY")
            assert refusal.retry is not None
    finally:
        await front.stop()
        await ports.inference.stop(None)
