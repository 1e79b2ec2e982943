"""What the generating methods pass to the front, and what they make of its events."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import grpc
import pytest
import structlog
from api_fakes import (
    ENDED,
    STARTED,
    USAGE,
    ApiServer,
    FakeFront,
    Step,
    api_server,
    refused,
    words,
)
from google.protobuf.duration_pb2 import Duration

from service.api.gen.plimsoll.v1 import common_pb2
from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.engine.messages import FinishReason, SamplingParams, TokenLogprob
from service.front.call import GenerationCall
from service.front.events import Delta, NotReady, Progress, Started
from service.tokenizer.tokenizer import ChatMessage

CONVERSATION = pb.Conversation(
    messages=[pb.ChatMessage(role=pb.ROLE_USER, content="hi")],
    tools_json="[1]",
    template_kwargs_json='{"a": 1}',
    continue_final_message=True,
)
OPTIONS = pb.GenerationOptions(
    sampling=pb.SamplingParams(temperature=0.5, seed=5, candidate_count=2),
    stopping=pb.StopConditions(
        max_tokens=9,
        min_tokens=2,
        stop=["a", "b"],
        stop_token_ids=[4, 5],
        include_stop=True,
        time_limit=Duration(seconds=3),
    ),
    output=pb.OutputOptions(
        token_ids=True,
        logprobs=1,
        skip_text=True,
        stream_interval_tokens=7,
        keep_special_tokens=True,
    ),
    cache=pb.CacheOptions(salt="s", skip_lookup=True, skip_insert=True),
    priority=-3,
)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server(FakeFront()) as running:
        yield running


async def stream(
    server: ApiServer, request: pb.GenerateStreamRequest | pb.ChatStreamRequest
) -> list[pb.GenerateStreamResponse | pb.ChatStreamResponse]:
    if isinstance(request, pb.ChatStreamRequest):
        return [answer async for answer in server.stub.ChatStream(request)]
    return [answer async for answer in server.stub.GenerateStream(request)]


def interleaved(_: GenerationCall) -> list[Step]:
    """Two candidates, merged and single deltas, a stop string and an end of context."""
    return [
        Started(5, 2, 9, 1, [TokenLogprob(1, -1.0, [], [])]),
        Progress([Delta(0, "Hel", [1]), Delta(1, "Tsch", [2])]),
        Progress([Delta(1, "ü", [3, 4], [TokenLogprob(3, -0.5, [3], [-0.5])])]),
        Progress([Delta(0, "lo", [5], finish_reason=FinishReason.STOP, stop="END")]),
        Progress([Delta(1, "ß", [6], finish_reason=FinishReason.CONTEXT_LENGTH)]),
        ENDED,
    ]


async def test_every_option_reaches_the_front(server: ApiServer) -> None:
    before_seconds = time.monotonic()
    await server.stub.Generate(
        pb.GenerateRequest(text="ab", request_id="r1", options=OPTIONS),
        metadata=[("x-tenant-id", "acme")],
        timeout=60,
    )
    (call,) = server.front.calls
    assert call.deadline_seconds == pytest.approx(before_seconds + 60, abs=30)
    assert call.arrival_seconds is not None
    assert before_seconds <= call.arrival_seconds <= time.monotonic()
    assert call == GenerationCall(
        request_id="r1",
        tenant="acme",
        prompt_ids=[299, 97, 98],
        sampling=SamplingParams(temperature=0.5, top_k=40, seed=5, logprobs=1),
        candidate_count=2,
        max_tokens=9,
        min_tokens=2,
        stop=("a", "b"),
        stop_ids=(4, 5),
        include_stop=True,
        arrival_seconds=call.arrival_seconds,
        time_limit_seconds=3.0,
        deadline_seconds=call.deadline_seconds,
        priority=-3,
        salt="s",
        skip_lookup=True,
        skip_insert=True,
        want_token_ids=True,
        skip_text=True,
        keep_special_tokens=True,
        continues_text=True,
        stream_interval_tokens=7,
    )


async def test_the_four_methods_ask_the_front_for_the_same(server: ApiServer) -> None:
    await server.stub.Generate(pb.GenerateRequest(text="hi", request_id="r", options=OPTIONS))
    await stream(server, pb.GenerateStreamRequest(text="hi", request_id="r", options=OPTIONS))
    chat = {"conversation": CONVERSATION, "request_id": "r", "options": OPTIONS}
    await server.stub.Chat(pb.ChatRequest(**chat))
    await stream(server, pb.ChatStreamRequest(**chat))
    generated, streamed, chatted, chat_streamed = server.front.calls
    for call in (generated, streamed, chatted, chat_streamed):
        assert call.deadline_seconds is None
    assert generated.prompt_ids == streamed.prompt_ids == [299, 104, 105]
    assert chatted.prompt_ids == chat_streamed.prompt_ids == [1, 104, 105]
    assert generated.sampling == streamed.sampling == chatted.sampling == chat_streamed.sampling


@pytest.mark.parametrize("continued", [False, True])
async def test_only_an_answer_of_its_own_begins_a_text(server: ApiServer, continued: bool) -> None:
    messages = [pb.ChatMessage(role=pb.ROLE_USER, content="hi")]
    conversation = pb.Conversation(messages=messages, continue_final_message=continued)
    await server.stub.Chat(pb.ChatRequest(conversation=conversation))
    await stream(server, pb.ChatStreamRequest(conversation=conversation))
    await stream(server, pb.GenerateStreamRequest(token_ids=pb.TokenIds(ids=[5])))
    assert [call.continues_text for call in server.front.calls] == [continued, continued, True]


async def test_token_ids_are_used_as_they_are(server: ApiServer) -> None:
    request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=[0, 299, 3]))
    await server.stub.Generate(request)
    assert server.front.calls[0].prompt_ids == [0, 299, 3]


async def test_the_conversation_reaches_the_tokenizer(server: ApiServer) -> None:
    await server.stub.Chat(pb.ChatRequest(conversation=CONVERSATION))
    messages, options = server.front.chat
    assert messages == [ChatMessage("user", "hi")]
    assert options == {
        "tools": [1],
        "template_kwargs": {"a": 1},
        "continue_final_message": True,
    }


async def test_the_server_draws_a_new_seed_for_each_request(server: ApiServer) -> None:
    for _ in range(8):
        await server.stub.Generate(pb.GenerateRequest(text="x"))
    seeds = [call.sampling.seed for call in server.front.calls]
    assert len(set(seeds)) == 8
    assert max(seeds) >= 2**48
    assert all(0 <= seed < 2**64 for seed in seeds)


@pytest.mark.parametrize("chat", [False, True])
async def test_a_stream_is_start_deltas_end(server: ApiServer, chat: bool) -> None:
    server.front.script = interleaved
    request = (
        pb.ChatStreamRequest(conversation=CONVERSATION, request_id="r1", options=OPTIONS)
        if chat
        else pb.GenerateStreamRequest(text="x", request_id="r1", options=OPTIONS)
    )
    answers = await stream(server, request)
    kinds = [answer.WhichOneof("event") for answer in answers]
    assert kinds == ["start", "deltas", "deltas", "deltas", "deltas", "end"]
    start, end = answers[0].start, answers[-1].end
    assert (start.request_id, start.model) == ("r1", "fake@abc123")
    assert (start.prompt_tokens, start.cached_prompt_tokens, start.seed) == (5, 2, 9)
    assert [len(answer.deltas.deltas) for answer in answers[1:-1]] == [2, 1, 1, 1]
    reasons = [
        (delta.index, delta.finish_reason)
        for answer in answers[1:-1]
        for delta in answer.deltas.deltas
        if delta.finish_reason
    ]
    assert reasons == [
        (0, common_pb2.FINISH_REASON_STOP),
        (1, common_pb2.FINISH_REASON_CONTEXT_LENGTH),
    ]
    assert end.usage.completion_tokens == USAGE.completion_tokens


@pytest.mark.parametrize("chat", [False, True])
async def test_the_unary_answer_is_the_stream_joined(server: ApiServer, chat: bool) -> None:
    server.front.script = interleaved
    answer: pb.GenerateResponse | pb.ChatResponse
    if chat:
        fields = {"conversation": CONVERSATION, "request_id": "r1", "options": OPTIONS}
        answer = await server.stub.Chat(pb.ChatRequest(**fields))
        answers = await stream(server, pb.ChatStreamRequest(**fields))
    else:
        fields = {"text": "x", "request_id": "r1", "options": OPTIONS}
        answer = await server.stub.Generate(pb.GenerateRequest(**fields))
        answers = await stream(server, pb.GenerateStreamRequest(**fields))
    start, end = answers[0].start, answers[-1].end
    joined = {0: pb.Candidate(index=0), 1: pb.Candidate(index=1)}
    for message in answers[1:-1]:
        for delta in message.deltas.deltas:
            candidate = joined[delta.index]
            candidate.text += delta.text
            candidate.token_ids.extend(delta.token_ids)
            candidate.logprobs.extend(delta.logprobs)
            candidate.finish_reason = delta.finish_reason
            if delta.HasField("stop_match"):
                candidate.stop_match.CopyFrom(delta.stop_match)
    assert list(answer.candidates) == [joined[0], joined[1]]
    assert [candidate.text for candidate in answer.candidates] == ["Hello", "Tschüß"]
    assert (answer.request_id, answer.model) == (start.request_id, start.model)
    assert (answer.usage, answer.timings) == (end.usage, end.timings)
    assert list(answer.prompt_logprobs) == list(start.prompt_logprobs)
    assert len(answer.prompt_logprobs) == 1


# --- metadata ---


async def test_metadata_of_an_answer(server: ApiServer) -> None:
    call = server.stub.Generate(pb.GenerateRequest(text="x", request_id="r1"))
    await call
    headers, trailers = dict(await call.initial_metadata()), dict(await call.trailing_metadata())
    assert headers["x-request-id"] == "r1"
    assert headers["x-model-version"] == "abc123"
    assert headers["x-served-by"] == "here"
    assert trailers["x-queue-ms"] == "250"
    assert trailers["x-kv-utilization"] == "0.2500"


async def test_metadata_of_a_stream(server: ApiServer) -> None:
    call = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x", request_id="r1"))
    async for _ in call:
        pass
    assert dict(await call.initial_metadata())["x-request-id"] == "r1"
    assert dict(await call.trailing_metadata())["x-queue-ms"] == "250"


async def test_the_id_comes_from_the_message_then_the_metadata_then_the_server(
    server: ApiServer,
) -> None:
    metadata = [("x-request-id", "from-metadata")]
    first = await server.stub.Generate(
        pb.GenerateRequest(text="x", request_id="from-message"), metadata=metadata
    )
    second = await server.stub.Generate(pb.GenerateRequest(text="x"), metadata=metadata)
    third = await server.stub.Generate(pb.GenerateRequest(text="x"))
    assert first.request_id == "from-message"
    assert second.request_id == "from-metadata"
    assert len(third.request_id) == 32
    assert [call.request_id for call in server.front.calls] == [
        "from-message",
        "from-metadata",
        third.request_id,
    ]


@pytest.mark.parametrize("value", ["x" * 65, "x" * 10_000])
async def test_a_tenant_that_is_too_long(server: ApiServer, value: str) -> None:
    call = server.stub.Generate(pb.GenerateRequest(text="x"), metadata=[("x-tenant-id", value)])
    assert list((await refused(call)).fields) == ["metadata.x-tenant-id"]
    call = server.stub.Generate(
        pb.GenerateRequest(text="x"), metadata=[("x-request-id", "y" * 129)]
    )
    assert list((await refused(call)).fields) == ["metadata.x-request-id"]


async def test_the_trace_of_the_client_reaches_the_front(server: ApiServer) -> None:
    trace_id, parent_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    for traceparent in (f"00-{trace_id}-{parent_id}-01", "00-nonsense"):
        await server.stub.Generate(
            pb.GenerateRequest(text="x"),
            metadata=[("traceparent", traceparent), ("tracestate", "vendor=1")],
        )
    trace, without = (call.trace for call in server.front.calls)
    assert trace is not None
    assert (trace.trace_id, trace.parent_span_id, trace.state) == (trace_id, parent_id, "vendor=1")
    assert without is None


async def test_headers_wait_for_admission(server: ApiServer) -> None:
    """A client retries by itself only until it has seen headers."""
    server.front.refusal = None
    server.front.script = lambda _: [ConnectionResetError("before start")]
    call = server.stub.GenerateStream(pb.GenerateStreamRequest(text="x"))
    await refused(call.read())
    assert "x-served-by" not in dict(await call.initial_metadata())


async def test_grpcs_own_retry_reaches_a_request_that_was_refused() -> None:
    front = FakeFront()
    refusals = iter([1, 1])

    def script(_: GenerationCall) -> list[Step]:
        return words("ok") if next(refusals, None) is None else [NotReady()]

    front.script = script
    policy = (
        '{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, '
        '"initialBackoff": "0.01s", "maxBackoff": "0.02s", "backoffMultiplier": 1, '
        '"retryableStatusCodes": ["UNAVAILABLE"]}}]}'
    )
    async with (
        api_server(front) as server,
        grpc.aio.insecure_channel(
            server.ports.inference_address, options=[("grpc.service_config", policy)]
        ) as channel,
    ):
        method = channel.unary_unary(
            "/plimsoll.v1.InferenceService/Generate",
            request_serializer=pb.GenerateRequest.SerializeToString,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        answer = await method(pb.GenerateRequest(text="x"))
    assert answer.candidates[0].text == "ok"
    assert [handle.closed for handle in front.handles] == [1, 1, 1]


# --- the other methods ---


async def test_tokenize(server: ApiServer) -> None:
    answer = await server.stub.Tokenize(
        pb.TokenizeRequest(text="ab", salt="s"), metadata=[("x-tenant-id", "acme")]
    )
    assert list(answer.token_ids) == [299, 97, 98]
    assert (answer.max_context_tokens, answer.cached_prefix_tokens) == (100, 1)
    assert server.front.log == ["lookup 'acme' 's'"]
    plain = await server.stub.Tokenize(pb.TokenizeRequest(text="ab", skip_special_tokens=True))
    assert list(plain.token_ids) == [97, 98]
    chat = await server.stub.Tokenize(pb.TokenizeRequest(conversation=CONVERSATION))
    assert list(chat.token_ids) == [1, 104, 105]


async def test_tokenize_needs_no_engine(server: ApiServer) -> None:
    async def lookup(*_: object, **__: object) -> int:
        raise NotReady

    server.front.lookup = lookup  # type: ignore[method-assign]
    answer = await server.stub.Tokenize(pb.TokenizeRequest(text="ab"))
    assert (list(answer.token_ids), answer.cached_prefix_tokens) == ([299, 97, 98], 0)


async def test_records_of_a_call_carry_its_id(server: ApiServer) -> None:
    bound: list[object] = []

    async def note() -> None:
        bound.append(structlog.contextvars.get_contextvars().get("request_id"))

    server.front.script = lambda _: [STARTED, note, ENDED]
    for request_id in ("r1", "r2"):
        await server.stub.Generate(pb.GenerateRequest(text="x", request_id=request_id))
    assert bound == ["r1", "r2"]


async def test_detokenize(server: ApiServer) -> None:
    ids = [0xC3, 256, 0xBC, 0xFF]
    answer = await server.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids))
    assert (answer.text, answer.raw) == ("ü\ufffd", b"\xc3\xbc\xff")
    answer = await server.stub.Detokenize(
        pb.DetokenizeRequest(token_ids=ids, keep_special_tokens=True)
    )
    assert answer.raw == b"\xc3<256>\xbc\xff"


async def test_abort_requests(server: ApiServer) -> None:
    answer = await server.stub.AbortRequests(
        pb.AbortRequestsRequest(request_ids=["a1", "b1", "a2"], reason="why"),
        metadata=[("x-tenant-id", "acme")],
    )
    assert list(answer.aborted_ids) == ["a1", "a2"]
    assert list(answer.unknown_ids) == ["b1"]
    assert server.front.log == ["abort acme why"]


async def test_get_model(server: ApiServer) -> None:
    answer = await server.stub.GetModel(pb.GetModelRequest(model="fake"))
    assert answer == pb.GetModelResponse(
        model="fake",
        version="abc123",
        max_context_tokens=100,
        vocab_size=300,
        eos_token_ids=[256],
        default_sampling=pb.SamplingParams(
            temperature=0.75,
            top_p=1.0,
            top_k=40,
            min_p=0.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            candidate_count=1,
        ),
        block_size_tokens=16,
        kv_cache_dtype="float32",
        max_request_bytes=4194304,
        supports_chat=True,
        device="cpu",
        weights_dtype="float32",
        attention_backend="fake",
    )


async def test_start_without_output_is_a_whole_stream(server: ApiServer) -> None:
    server.front.script = lambda _: [STARTED, ENDED]
    answers = await stream(server, pb.GenerateStreamRequest(text="x"))
    assert [answer.WhichOneof("event") for answer in answers] == ["start", "end"]
