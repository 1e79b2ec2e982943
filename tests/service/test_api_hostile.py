"""Input of a client that means harm, or has a bug: refused cleanly, and the server lives on.

Bodies are written byte by byte (field tags and lengths of the protobuf wire format), because no
protobuf library would send them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import pytest
from api_fakes import ApiServer, FakeFront, api_server, refused

from service.api.gen.plimsoll.v1 import inference_pb2 as pb

TEXT, OPTIONS = b"\x1a", b"\x2a"  # tags of GenerateRequest.text and .options


def field(tag: bytes, body: bytes) -> bytes:
    assert len(body) < 128
    return tag + bytes([len(body)]) + body


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server(FakeFront()) as running:
        yield running
        running.front.refusal = None
        answer = await running.stub.Generate(pb.GenerateRequest(text="still there?"))
        assert answer.candidates[0].text == "hi there"


MALFORMED = {
    "invalid UTF-8": field(TEXT, b"\xff\xfe"),
    "surrogate": field(TEXT, b"\xed\xa0\x80"),
    "overlong": field(TEXT, b"\xc0\x80"),
    "truncated": TEXT + b"\x7fabc",
    "garbage": b"\x00\x01\x02\xff" * 20,
    "nested groups": b"\x0b" * 200,
    "endless varint": OPTIONS + b"\xff" * 12,
}


@pytest.mark.parametrize("method", ["Generate", "Chat", "Tokenize", "Detokenize"])
@pytest.mark.parametrize("kind", MALFORMED)
async def test_bytes_that_are_no_message(server: ApiServer, method: str, kind: str) -> None:
    body = MALFORMED[kind]
    if method in ("Tokenize", "Detokenize"):
        body = body.replace(TEXT, b"\x12", 1)  # there field 2 is the first with a length
    if method == "Chat":
        body = body.replace(TEXT, b"\x0a", 1)  # field 1, the model
    refusal = await refused(server.raw(method, body))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "MALFORMED_MESSAGE",
    )
    assert "DecodeError" not in refusal.message
    assert not server.front.calls


async def test_bytes_that_are_no_message_to_a_stream(server: ApiServer) -> None:
    call = server.channel.unary_stream("/plimsoll.v1.InferenceService/GenerateStream")
    refusal = await refused(call(MALFORMED["invalid UTF-8"]).read())
    assert refusal.reason == "MALFORMED_MESSAGE"


async def test_bytes_that_are_no_message_to_the_admin_port(server: ApiServer) -> None:
    call = server.admin_channel.unary_unary("/plimsoll.v1.EngineAdminService/FlushCache")
    refusal = await refused(call(field(b"\x0a", b"\xff")))
    assert refusal.reason == "MALFORMED_MESSAGE"
    assert server.front.log == []


async def test_nul_in_text_is_text(server: ApiServer) -> None:
    await server.raw("Generate", field(TEXT, b"a\x00b"))
    assert server.front.calls[0].prompt_ids == [299, 97, 0, 98]


async def test_unknown_fields_are_ignored(server: ApiServer) -> None:
    await server.raw("Generate", field(TEXT, b"a") + b"\xf8\x7f\x01")
    assert server.front.calls[0].prompt_ids == [299, 97]


async def test_the_last_of_two_prompts_wins(server: ApiServer) -> None:
    await server.raw("Generate", field(TEXT, b"a") + field(b"\x22", field(b"\x0a", b"\x05\x06")))
    assert server.front.calls[0].prompt_ids == [5, 6]


async def test_negative_max_tokens_is_the_largest_and_the_context_ends_it(
    server: ApiServer,
) -> None:
    minus_one = b"\x08" + b"\xff" * 9 + b"\x01"
    await server.raw("Generate", field(TEXT, b"a") + field(OPTIONS, field(b"\x12", minus_one)))
    assert server.front.calls[0].max_tokens == 2**32 - 1


async def test_a_priority_that_wraps_around_is_refused(server: ApiServer) -> None:
    wraps = b"\x30" + b"\x80\x80\x80\x80\x08"  # priority = 2^31
    refusal = await refused(server.raw("Generate", field(TEXT, b"a") + field(OPTIONS, wraps)))
    assert refusal.fields == {
        "options.priority": "options.priority = -2147483648: must be in [-100, 100]"
    }


async def test_an_unknown_enum_value_is_refused(server: ApiServer) -> None:
    message = field(b"\x0a", b"\x08\x63")  # role = 99
    refusal = await refused(server.raw("Chat", field(b"\x1a", message)))
    assert list(refusal.fields) == ["conversation.messages[0].role"]


async def test_a_million_stop_strings(server: ApiServer) -> None:
    request = pb.GenerateRequest(text="x")
    request.options.stopping.stop.extend(["s"] * 1_000_000)
    refusal = await refused(server.stub.Generate(request))
    assert list(refusal.fields) == ["options.stopping.stop.length"]


async def test_a_million_token_ids(server: ApiServer) -> None:
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[7] * 1_000_000))
    refusal = await refused(server.stub.Generate(request))
    assert refusal.reason == "CONTEXT_LENGTH_EXCEEDED"
    assert refusal.info is not None
    assert refusal.info.metadata["prompt_tokens"] == "1000000"
    request.options.truncate_prompt_tokens = 3
    await server.stub.Generate(request)
    assert server.front.calls[0].prompt_ids == [7, 7, 7]


async def test_a_message_beyond_the_limit_and_one_at_it() -> None:
    limit = 4096
    async with api_server(FakeFront(), max_request_bytes=limit) as server:
        empty = len(pb.GenerateRequest(text="x" * 200).SerializeToString()) - 200
        # Two more bytes hold the longer length.
        fits = pb.TokenizeRequest(text="x" * (limit - empty))
        assert len(fits.SerializeToString()) == limit
        assert len((await server.stub.Tokenize(fits)).token_ids) == limit - empty + 1
        refusal = await refused(
            server.stub.Tokenize(pb.TokenizeRequest(text="x" * (limit - empty + 1)))
        )
        assert (refusal.code, refusal.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, None)


async def test_compression_does_not_get_around_the_limit() -> None:
    async with (
        api_server(FakeFront(), max_request_bytes=65536) as server,
        grpc.aio.insecure_channel(
            server.ports.inference_address, compression=grpc.Compression.Gzip
        ) as channel,
    ):
        body = pb.GenerateRequest(text="x" * 1_000_000).SerializeToString()
        call = channel.unary_unary("/plimsoll.v1.InferenceService/Generate")(body)
        assert (await refused(call)).code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not server.front.calls


@pytest.mark.parametrize(
    "metadata", [[("x", "v" * 17_000)], [(f"key-{i}", "v" * 20) for i in range(500)]]
)
async def test_too_much_metadata(server: ApiServer, metadata: list[tuple[str, str]]) -> None:
    body = field(TEXT, b"a")
    refusal = await refused(server.raw("Generate", body, metadata))
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert not server.front.calls


async def test_a_deadline_in_the_past_never_reaches_the_front(server: ApiServer) -> None:
    """The loop is held up, so that gRPC has not noticed the deadline when we look at it."""
    encode = server.front.encode

    async def encode_and_hold(text: str, *, add_special_tokens: bool = True) -> list[int]:
        hold()
        return await encode(text, add_special_tokens=add_special_tokens)

    def hold() -> None:
        time.sleep(0.2)

    server.front.encode = encode_and_hold  # type: ignore[method-assign]
    call = server.stub.Generate(pb.GenerateRequest(text="x"), timeout=0.1)
    assert (await refused(call)).code is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(server.ports.in_flight.wait_empty(), 120)
    assert not server.front.calls
    server.front.encode = encode  # type: ignore[method-assign]


async def test_an_unknown_method_and_service(server: ApiServer) -> None:
    refusal = await refused(server.raw("Delete", b""))
    assert refusal.code is grpc.StatusCode.UNIMPLEMENTED
    # Operators' methods are not on the port of the clients.
    call = server.channel.unary_unary("/plimsoll.v1.EngineAdminService/Drain")
    assert (await refused(call(b""))).code is grpc.StatusCode.UNIMPLEMENTED
    assert server.front.log == []
