"""The client against a scripted server: retries, typed errors, broken streams."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.rpc import code_pb2, error_details_pb2
from scripted_server import ANSWER, PROMPT, UNAVAILABLE, Script, start_scripted_server, status

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.client import (
    FinishReason,
    GenerationOptions,
    Message,
    PlimsollClient,
    PlimsollError,
    RetryPolicy,
    Role,
    StreamBroken,
)

FAST = RetryPolicy(max_attempts=6, initial_seconds=0.001, max_seconds=0.01)
GREEDY = GenerationOptions(temperature=0)


@pytest.fixture
async def connect():
    """Starts a fake server for a script and returns a client of it."""
    opened: list[object] = []

    async def open_client(script: Script, **arguments: object) -> PlimsollClient:
        server, port = await start_scripted_server(script)
        settings = {"retry": FAST, "resume": FAST} | arguments
        client = PlimsollClient(f"127.0.0.1:{port}", **settings)
        opened.extend((client.close(), server.stop(None)))
        return client

    yield open_client
    for closing in opened:
        await closing


async def test_a_stream_carries_text_ids_and_figures(connect):
    client = await connect(Script())
    stream = client.stream(PROMPT, GREEDY)
    answer = await stream.collect()
    assert answer.text == ANSWER
    assert bytes(answer.token_ids).decode() == ANSWER
    assert answer.finish_reason is FinishReason.EOS
    assert answer.usage.prompt_tokens == len(PROMPT)
    assert stream.start.seed == 77
    assert stream.resumptions == 0


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("strips_leading_space", [False, True])
@pytest.mark.parametrize("tokens_per_message", [1, 3])
async def test_continuing_at_every_token_loses_and_repeats_nothing(
    connect, tokens_per_message, strips_leading_space, chat
):
    tokens = list(ANSWER.encode())
    whole = Script(strips_leading_space=strips_leading_space).decode(tokens, at_start=chat)
    for position in range(1, len(tokens)):
        script = Script(
            breaks=[position],
            tokens_per_message=tokens_per_message,
            strips_leading_space=strips_leading_space,
        )
        client = await connect(script)
        if chat:
            stream = client.chat_stream([Message(Role.USER, PROMPT)], GREEDY)
        else:
            stream = client.stream(PROMPT, GREEDY)
        answer = await stream.collect()
        assert answer.text == whole, position
        assert list(answer.token_ids) == tokens, position
        assert answer.usage.prompt_tokens == len(PROMPT)
        assert answer.usage.completion_tokens == len(tokens)
        last_message = (len(tokens) - 1) // tokens_per_message * tokens_per_message
        assert stream.resumptions == (position <= last_message)
        assert len({request.request_id for request in script.requests}) == len(script.requests)


async def test_continuing_sends_the_received_tokens_as_prompt(connect):
    script = Script(breaks=[5])
    client = await connect(script)
    options = GREEDY.replace(max_tokens=9, min_tokens=7)
    answer = await client.stream(PROMPT, options).collect()
    assert bytes(answer.token_ids) == ANSWER.encode()[:9]
    second = script.requests[1]
    kept = len(second.token_ids.ids) - len(PROMPT)
    assert 0 < kept <= 5
    assert second.options.stopping.max_tokens == 9 - kept
    assert second.options.stopping.min_tokens == 7 - kept


async def test_a_conversation_continues_as_token_ids(connect):
    script = Script(breaks=[8])
    client = await connect(script)
    answer = await client.chat_stream([Message(Role.USER, PROMPT)], GREEDY).collect()
    assert answer.text == ANSWER
    assert isinstance(script.requests[1], pb.GenerateStreamRequest)


async def test_a_stream_survives_several_breaks(connect):
    script = Script(breaks=[6, 0, 6, 6, 6, 6])
    policy = RetryPolicy(max_attempts=3, initial_seconds=0.001, max_seconds=0.01)
    client = await connect(script, resume=policy)
    stream = client.stream(PROMPT, GREEDY)
    assert (await stream.collect()).text == ANSWER
    assert len(script.requests) == 7  # more than 3: attempts count from the last progress


@pytest.mark.parametrize(
    "options",
    [
        GenerationOptions(),
        GenerationOptions(temperature=0.9),
        GenerationOptions(temperature=0, presence_penalty=0.5),
        GenerationOptions(temperature=0, frequency_penalty=0.5),
        GenerationOptions(temperature=0, stop=("zzz",)),
        GenerationOptions(temperature=0, candidate_count=3),
        GenerationOptions(temperature=0, truncate_prompt_tokens=100),
    ],
    ids=lambda options: str(options)[:80],
)
async def test_what_cannot_be_continued_is_replayed_with_its_seed(connect, options):
    script = Script(breaks=[7], answer_of_seed=lambda seed: ANSWER if seed == 77 else "other")
    client = await connect(script)
    answer = await client.stream(PROMPT, options).collect()
    assert [candidate.text for candidate in answer.candidates] == [ANSWER] * (
        options.candidate_count or 1
    )
    assert bytes(answer.token_ids).decode() == ANSWER
    assert script.requests[1].text == PROMPT
    assert script.requests[1].options.sampling.seed == 77
    assert script.tokenize_calls == 0


async def test_a_default_temperature_of_zero_is_greedy(connect):
    script = Script(breaks=[7], default_temperature=0.0)
    client = await connect(script)
    assert (await client.stream(PROMPT).collect()).text == ANSWER
    assert script.tokenize_calls == 1


async def test_a_break_between_last_token_and_end_gives_the_figures_still(connect):
    script = Script(breaks=[len(ANSWER.encode())])
    client = await connect(script)
    stream = client.stream(PROMPT, GREEDY)
    chunks = [chunk async for chunk in stream]
    answer = stream.generation(chunks)
    assert sum(chunk.finish_reason is not None for chunk in chunks) == 1
    assert answer.text == ANSWER
    assert answer.usage.completion_tokens == len(ANSWER.encode())
    assert answer.finish_reason is FinishReason.EOS


async def test_a_replay_that_differs_is_broken_not_mixed(connect):
    answers = iter(["first answer", "fierce beast"])
    script = Script(breaks=[6], answer_of_seed=lambda _seed: next(answers))
    client = await connect(script)
    stream = client.stream(PROMPT, GenerationOptions(temperature=1.0))
    received = "".join([(await anext(stream)).text for _ in range(6)])
    assert received == "first "
    with pytest.raises(StreamBroken) as broken:
        await anext(stream)
    assert broken.value.tokens_received == 6
    assert broken.value.text == "first "


async def test_a_shorter_replay_is_broken(connect):
    answers = iter(["first answer", "fir"])
    script = Script(breaks=[6], answer_of_seed=lambda _seed: next(answers))
    client = await connect(script)
    with pytest.raises(StreamBroken, match="shorter"):
        await client.stream(PROMPT, GenerationOptions(temperature=1.0)).collect()


async def test_another_model_does_not_continue_the_answer(connect):
    script = Script(breaks=[6], model=lambda call: f"fake@{call}")
    client = await connect(script)
    with pytest.raises(StreamBroken, match="model changed"):
        await client.stream(PROMPT, GREEDY).collect()


async def test_resuming_can_be_switched_off(connect):
    script = Script(breaks=[6])
    client = await connect(script, resume=None)
    with pytest.raises(StreamBroken, match="switched off") as broken:
        await client.stream(PROMPT, GREEDY).collect()
    assert broken.value.tokens_received == 6
    assert broken.value.cause.reason == "DRAINING"
    assert len(script.requests) == 1


async def test_giving_up_on_a_server_that_stays_away(connect):
    script = Script(breaks=[6, *[0] * 50])
    client = await connect(script)
    with pytest.raises(StreamBroken) as broken:
        await client.stream(PROMPT, GREEDY).collect()
    assert broken.value.tokens_received == 6
    assert len(script.requests) == FAST.max_attempts


async def test_a_refused_call_is_tried_again(connect):
    retry_info = error_details_pb2.RetryInfo()
    retry_info.retry_delay.FromMilliseconds(2)
    full = status(code_pb2.RESOURCE_EXHAUSTED, "QUEUE_FULL", retry_info, waiting="9")
    script = Script(refusals=[full, UNAVAILABLE])
    client = await connect(script)
    assert (await client.generate(PROMPT, GREEDY)).text == ANSWER
    script.refusals = [full, UNAVAILABLE]
    assert (await client.stream(PROMPT, GREEDY).collect()).text == ANSWER
    assert len(script.requests) == 3


async def test_a_final_refusal_carries_the_facts(connect):
    violation = error_details_pb2.BadRequest.FieldViolation(
        field="options.sampling.temperature", description="9 is not in [0, 2]"
    )
    bad = error_details_pb2.BadRequest(field_violations=[violation])
    script = Script(refusals=[status(code_pb2.INVALID_ARGUMENT, "INVALID_FIELD", bad, limit="2")])
    client = await connect(script)
    with pytest.raises(PlimsollError) as caught:
        await client.stream(PROMPT, GREEDY).collect()
    error = caught.value
    assert error.code is grpc.StatusCode.INVALID_ARGUMENT
    assert error.reason == "INVALID_FIELD"
    assert error.metadata == {"limit": "2"}
    assert [v.field for v in error.violations] == ["options.sampling.temperature"]
    assert "options.sampling.temperature: 9 is not in [0, 2]" in str(error)
    assert len(script.requests) == 1


async def test_overload_without_a_hint_is_not_retried(connect):
    script = Script(refusals=[status(code_pb2.RESOURCE_EXHAUSTED, "SLOW_READER")] * 2)
    client = await connect(script)
    with pytest.raises(PlimsollError, match="SLOW_READER"):
        await client.stream(PROMPT, GREEDY).collect()
    assert len(script.requests) == 1


@pytest.mark.parametrize(("pushback_ms", "calls"), [("1", 2), ("-1", 1), ("soon", 1)])
async def test_pushback_of_the_server_decides(connect, pushback_ms, calls):
    script = Script(refusals=[UNAVAILABLE], pushback_ms=pushback_ms)
    client = await connect(script)
    stream = client.stream(PROMPT, GREEDY)
    if calls == 1:
        with pytest.raises(PlimsollError) as caught:
            await stream.collect()
        assert not caught.value.may_retry
    else:
        assert (await stream.collect()).text == ANSWER
    assert len(script.requests) == calls


async def test_no_retry_that_would_end_after_the_deadline(connect):
    script = Script(refusals=[UNAVAILABLE] * 3, pushback_ms="60000")
    client = await connect(script)
    with pytest.raises(PlimsollError) as caught:
        await client.stream(PROMPT, GREEDY, timeout_seconds=5).collect()
    assert caught.value.retry_after_seconds == 60
    assert len(script.requests) == 1


async def test_leaving_a_stream_cancels_the_call(connect):
    script = Script(hang_after=3)
    client = await connect(script)
    async with client.stream(PROMPT, GREEDY) as stream:
        await anext(stream)
        await anext(stream)
    await asyncio.wait_for(script.cancelled.wait(), 120)


async def test_a_vanished_server_is_resumed_on_its_successor():
    """A listening port that dies and comes back, as with a restarted pod."""
    script = Script(hang_after=5)
    host = "127.0.0.2"  # nobody else takes the port here while it is free
    first, port = await start_scripted_server(script, host=host)
    async with PlimsollClient(f"{host}:{port}") as client:
        stream = client.stream(PROMPT, GREEDY)
        texts = [(await anext(stream)).text for _ in range(5)]
        await first.stop(None)
        script.hang_after = None
        second, _ = await start_scripted_server(script, port, host)
        texts += [chunk.text async for chunk in stream]
        await second.stop(None)
    assert "".join(texts) == ANSWER
    assert stream.resumptions == 1
