"""Each row of the error table as a client sees it: code, reason, details, trailers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import grpc
import pytest
import structlog
from api_fakes import (
    MODEL,
    STARTED,
    VOCAB_SIZE,
    ApiServer,
    FakeFront,
    api_server,
    refused,
)

from service.api.errors import INTERNAL_MESSAGE
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.front.events import (
    AbortedByAdmin,
    DeadlineUnreachable,
    Delta,
    Draining,
    DuplicateRequestId,
    EngineCrashedByRequest,
    EngineLost,
    ExceedsCapacity,
    ModelFailed,
    NotReady,
    Progress,
    QueueFull,
    SlowReader,
)
from service.front.state import FrontState
from service.tokenizer.errors import ControlTokenInTextError, NoChatTemplateError

CONVERSATION = pb.Conversation(messages=[pb.ChatMessage(role=pb.ROLE_USER, content="hi")])


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server(FakeFront()) as running:
        yield running


async def consume(call: AsyncIterator[object]) -> None:
    async for _ in call:
        pass


def generate(server: ApiServer, **fields: object) -> Awaitable[object]:
    return server.stub.Generate(pb.GenerateRequest(**{"text": "x", **fields}))


def generate_stream(server: ApiServer, **fields: object) -> Awaitable[object]:
    return consume(server.stub.GenerateStream(pb.GenerateStreamRequest(**{"text": "x", **fields})))


def chat(server: ApiServer, **fields: object) -> Awaitable[object]:
    return server.stub.Chat(pb.ChatRequest(**{"conversation": CONVERSATION, **fields}))


def chat_stream(server: ApiServer, **fields: object) -> Awaitable[object]:
    request = pb.ChatStreamRequest(**{"conversation": CONVERSATION, **fields})
    return consume(server.stub.ChatStream(request))


METHODS = [generate, generate_stream, chat, chat_stream]

ROWS: list[tuple[Exception, grpc.StatusCode, str, dict[str, str], int | None, str | None]] = [
    # error, code, reason, metadata, RetryInfo in ms, grpc-retry-pushback-ms
    (
        ExceedsCapacity(prompt_tokens=90, needed_blocks=6, total_blocks=4, limit_tokens=64),
        grpc.StatusCode.FAILED_PRECONDITION,
        "EXCEEDS_CACHE_CAPACITY",
        {
            "prompt_tokens": "90",
            "needed_blocks": "6",
            "total_blocks": "4",
            "limit_tokens": "64",
        },
        None,
        None,
    ),
    (
        QueueFull(waiting=7, limit=7, retry_after_seconds=1.25),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "QUEUE_FULL",
        {"waiting": "7", "limit": "7"},
        1250,
        "1250",
    ),
    (
        DeadlineUnreachable(
            forecast_seconds=12.3456, remaining_seconds=9.5, retry_after_seconds=2.8456
        ),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "DEADLINE_UNREACHABLE",
        {"forecast_seconds": "12.346", "remaining_seconds": "9.500"},
        2846,
        "2846",
    ),
    (
        SlowReader(unsent_tokens=70, limit_seconds=2.5),
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "SLOW_READER",
        {"unsent_tokens": "70", "limit_seconds": "2.5"},
        None,
        None,
    ),
    (Draining(), grpc.StatusCode.UNAVAILABLE, "DRAINING", {}, 0, None),
    (NotReady(), grpc.StatusCode.UNAVAILABLE, "NOT_READY", {}, 0, None),
    (
        EngineLost(tokens_sent=0),
        grpc.StatusCode.UNAVAILABLE,
        "ENGINE_LOST",
        {"tokens_sent": "0"},
        0,
        None,
    ),
    (
        EngineLost(tokens_sent=4),
        grpc.StatusCode.ABORTED,
        "ENGINE_LOST",
        {"tokens_sent": "4"},
        None,
        None,
    ),
    (
        EngineCrashedByRequest(engine_deaths=4, tokens_sent=7),
        grpc.StatusCode.INTERNAL,
        "ENGINE_CRASHED_BY_REQUEST",
        {"engine_deaths": "4", "tokens_sent": "7"},
        None,
        None,
    ),
    (
        AbortedByAdmin(reason="node drain"),
        grpc.StatusCode.CANCELLED,
        "ABORTED_BY_ADMIN",
        {"abort_reason": "node drain"},
        None,
        None,
    ),
    (
        DuplicateRequestId("r1"),
        grpc.StatusCode.ALREADY_EXISTS,
        "REQUEST_ID_IN_USE",
        {"request_id": "r1"},
        None,
        None,
    ),
]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("moment", ["admission", "first event", "mid stream"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[2]}-{row[1].name}")
async def test_what_the_front_raises(
    server: ApiServer,
    method: Callable[..., Awaitable[object]],
    moment: str,
    row: tuple[Exception, grpc.StatusCode, str, dict[str, str], int | None, str | None],
) -> None:
    error, code, reason, metadata, retry_ms, pushback_ms = row
    if moment == "admission":
        server.front.refusal = error
    elif moment == "first event":
        server.front.script = lambda _: [error]
    else:
        server.front.script = lambda _: [STARTED, Progress([Delta(0, "x")]), error]
    refusal = await refused(method(server, request_id="r1"))
    assert (refusal.code, refusal.reason) == (code, reason)
    assert refusal.info is not None
    assert refusal.info.domain == "plimsoll.v1"
    assert dict(refusal.info.metadata) == metadata
    assert (refusal.retry.retry_delay.ToMilliseconds() if refusal.retry else None) == retry_ms
    assert refusal.trailers.get("grpc-retry-pushback-ms") == pushback_ms
    assert refusal.trailers["x-request-id"] == "r1"
    assert (refusal.request_info is not None) == (code is grpc.StatusCode.INTERNAL)
    assert [handle.closed for handle in server.front.handles] == (
        [] if moment == "admission" else [1]
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("moment", ["admission", "mid stream"])
async def test_a_bug_tells_the_request_id_and_nothing_else(
    server: ApiServer, method: Callable[..., Awaitable[object]], moment: str
) -> None:
    secret = ValueError("/etc/secret/key at 0x7f")
    if moment == "admission":
        server.front.refusal = secret
    else:
        server.front.script = lambda _: [STARTED, secret]
    with structlog.testing.capture_logs() as records:
        refusal = await refused(method(server, request_id="r1"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert refusal.message == INTERNAL_MESSAGE
    assert refusal.request_info is not None
    assert refusal.request_info.request_id == "r1"
    assert "secret" not in repr(refusal)
    assert [(r["event"], r["request_id"]) for r in records] == [("call failed", "r1")]
    assert records[0]["exc_info"]


@pytest.mark.parametrize("method", METHODS)
async def test_a_failure_of_the_model_is_internal(
    server: ApiServer, method: Callable[..., Awaitable[object]]
) -> None:
    server.front.script = lambda _: [STARTED, Progress([Delta(0, "x")]), ModelFailed()]
    with structlog.testing.capture_logs() as records:
        refusal = await refused(method(server, request_id="r1"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert refusal.message == INTERNAL_MESSAGE
    assert refusal.request_info is not None
    assert refusal.request_info.request_id == "r1"
    assert not [r for r in records if r["event"] == "call failed"], "it is no bug of ours"


@pytest.mark.parametrize("method", METHODS)
async def test_fields_out_of_range(
    server: ApiServer, method: Callable[..., Awaitable[object]]
) -> None:
    options = pb.GenerationOptions(
        sampling=pb.SamplingParams(temperature=float("nan")), priority=2**31 - 1
    )
    refusal = await refused(method(server, options=options))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
    )
    assert refusal.fields == {
        "options.sampling.temperature": "options.sampling.temperature = nan: must be in [0, 2]",
        "options.priority": "options.priority = 2147483647: must be in [-100, 100]",
    }
    assert refusal.trailers["x-request-id"]
    assert not server.front.calls


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"text": ""}, "text"),
        ({"text": None}, "prompt"),
        ({"text": None, "token_ids": pb.TokenIds()}, "token_ids.ids"),
        ({"text": None, "token_ids": pb.TokenIds(ids=[1, VOCAB_SIZE])}, "token_ids.ids[1]"),
        ({"request_id": "x" * 129}, "request_id"),
        ({"request_id": "é"}, "request_id"),
        ({"request_id": "a\nb"}, "request_id"),
    ],
)
async def test_bad_prompts_and_ids(server: ApiServer, fields: dict[str, object], path: str) -> None:
    refusal = await refused(generate(server, **fields))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "INVALID_FIELD",
    )
    assert list(refusal.fields) == [path]
    assert not server.front.calls


async def test_an_unset_conversation(server: ApiServer) -> None:
    refusal = await refused(chat(server, conversation=None))
    assert list(refusal.fields) == ["conversation.messages.length"]


async def test_text_that_the_tokenizer_refuses(server: ApiServer) -> None:
    server.front.encode_error = ControlTokenInTextError([1])
    refusal = await refused(generate(server))
    assert refusal.reason == "INVALID_FIELD"
    assert list(refusal.fields) == ["text"]


async def test_a_model_without_a_chat_template(server: ApiServer) -> None:
    server.front.encode_error = NoChatTemplateError("fake")
    refusal = await refused(chat(server))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "FEATURE_DISABLED",
    )


@pytest.mark.parametrize("method", METHODS)
async def test_a_prompt_beyond_the_context(
    server: ApiServer, method: Callable[..., Awaitable[object]]
) -> None:
    long = "x" * MODEL.max_context_tokens
    prompt = (
        {"text": long}
        if method in (generate, generate_stream)
        else {
            "conversation": pb.Conversation(
                messages=[pb.ChatMessage(role=pb.ROLE_USER, content=long)]
            )
        }
    )
    refusal = await refused(method(server, **prompt))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "CONTEXT_LENGTH_EXCEEDED",
    )
    assert refusal.info is not None
    assert dict(refusal.info.metadata) == {
        "prompt_tokens": "101",
        "min_tokens": "1",
        "max_context_tokens": "100",
    }


@pytest.mark.parametrize("method", METHODS)
async def test_an_unknown_model(
    server: ApiServer, method: Callable[..., Awaitable[object]]
) -> None:
    refusal = await refused(method(server, model="other"))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.NOT_FOUND, "MODEL_NOT_FOUND")
    assert refusal.info is not None
    assert dict(refusal.info.metadata) == {"served": "fake"}


async def test_an_unknown_model_for_the_other_methods(server: ApiServer) -> None:
    for call in (
        server.stub.Tokenize(pb.TokenizeRequest(model="other", text="x")),
        server.stub.Detokenize(pb.DetokenizeRequest(model="other")),
        server.stub.GetModel(pb.GetModelRequest(model="other")),
    ):
        assert (await refused(call)).reason == "MODEL_NOT_FOUND"


@pytest.mark.parametrize("method", METHODS)
async def test_before_the_model_is_loaded(
    server: ApiServer, method: Callable[..., Awaitable[object]]
) -> None:
    server.front.model = None
    refusal = await refused(method(server))
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.UNAVAILABLE, "NOT_READY")


async def test_draining_refuses_before_it_tokenizes(server: ApiServer) -> None:
    server.front.states.set(FrontState.DRAINING)
    server.front.encode_error = AssertionError("tokenized")
    assert (await refused(generate(server))).reason == "DRAINING"


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        (
            pb.GenerationOptions(constraint=pb.OutputConstraint(regex="a+")),
            "options.constraint.regex",
        ),
        (
            pb.GenerationOptions(stopping=pb.StopConditions(ignore_eos=True)),
            "options.stopping.ignore_eos",
        ),
    ],
)
async def test_disabled_features(
    server: ApiServer, options: pb.GenerationOptions, feature: str
) -> None:
    refusal = await refused(generate(server, options=options))
    assert (refusal.code, refusal.reason) == (
        grpc.StatusCode.UNIMPLEMENTED,
        "FEATURE_DISABLED",
    )
    assert refusal.info is not None
    assert dict(refusal.info.metadata) == {"feature": feature}


async def test_ignore_eos_where_the_server_allows_it() -> None:
    async with api_server(FakeFront(), allow_ignore_eos=True) as server:
        options = pb.GenerationOptions(stopping=pb.StopConditions(ignore_eos=True))
        await generate(server, options=options)
        assert server.front.calls[0].ignore_eos


async def test_the_deadline_is_grpcs_own(server: ApiServer) -> None:
    server.front.script = lambda _: [STARTED, asyncio.Event().wait]
    call = server.stub.Generate(pb.GenerateRequest(text="x"), timeout=0.2)
    refusal = await refused(call)
    assert (refusal.code, refusal.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, None)


@pytest.mark.parametrize(
    ("call", "path"),
    [
        (lambda s: s.stub.Tokenize(pb.TokenizeRequest()), "input"),
        (lambda s: s.stub.Tokenize(pb.TokenizeRequest(text="x" * 1048577)), "text"),
        (lambda s: s.stub.Tokenize(pb.TokenizeRequest(text="x", salt="s" * 129)), "salt"),
        (lambda s: s.stub.Detokenize(pb.DetokenizeRequest(token_ids=[300])), "token_ids[0]"),
        (
            lambda s: s.stub.Detokenize(pb.DetokenizeRequest(token_ids=[1] * 131073)),
            "token_ids.length",
        ),
        (lambda s: s.stub.AbortRequests(pb.AbortRequestsRequest()), "request_ids.length"),
        (
            lambda s: s.stub.AbortRequests(pb.AbortRequestsRequest(request_ids=["a"] * 1025)),
            "request_ids.length",
        ),
        (
            lambda s: s.stub.AbortRequests(
                pb.AbortRequestsRequest(request_ids=["a"], reason="é" * 129)
            ),
            "reason",
        ),
    ],
)
async def test_limits_of_the_other_methods(
    server: ApiServer, call: Callable[[ApiServer], Awaitable[object]], path: str
) -> None:
    refusal = await refused(call(server))
    assert refusal.reason == "INVALID_FIELD"
    assert list(refusal.fields) == [path]


async def test_prompt_logprobs_that_make_a_large_message() -> None:
    front = FakeFront()
    front.model = replace(MODEL, max_context_tokens=10_000)
    async with api_server(front) as server:
        options = pb.GenerationOptions(output=pb.OutputOptions(prompt_logprobs=20))
        refusal = await refused(generate(server, text="x" * 4000, options=options))
        assert list(refusal.fields) == ["options.output.prompt_logprobs"]
