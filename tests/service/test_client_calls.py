"""Each call of the client over the real gRPC layer: arguments arrive, answers come back typed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from api_fakes import ApiServer, FakeFront, api_server, words

from service.api.gen.plimsoll.v1.engine_admin_pb2 import SetMemoryUtilizationRequest
from service.client import (
    Conversation,
    FinishReason,
    GenerationOptions,
    Message,
    PlimsollClient,
    Role,
    Tokenization,
)
from service.client.outputs import AbortOutcome


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with api_server(FakeFront()) as running:
        yield running


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[PlimsollClient]:
    async with PlimsollClient(
        server.ports.inference_address,
        admin_target=server.ports.admin_address,
        metadata=[("x-tenant-id", "acme")],
    ) as connected:
        yield connected


async def test_generate(client: PlimsollClient, server: ApiServer) -> None:
    server.front.script = lambda _: words("a", "b")
    options = GenerationOptions(max_tokens=7, seed=3, priority=-2, cache_salt="s")
    answer = await client.generate([5, 6], options, request_id="mine")
    assert (answer.text, answer.request_id) == ("ab", "mine")
    assert answer.finish_reason is FinishReason.EOS
    assert answer.timings.decode_seconds == 1.5
    (call,) = server.front.calls
    assert (call.prompt_ids, call.max_tokens, call.sampling.seed) == ([5, 6], 7, 3)
    assert (call.tenant, call.priority, call.salt) == ("acme", -2, "s")


async def test_chat(client: PlimsollClient, server: ApiServer) -> None:
    messages = [Message(Role.USER, "Hi"), Message("assistant", "Well")]
    await client.chat(Conversation(messages, continue_final_message=True))
    sent, options = server.front.chat
    assert [(message.role, message.content) for message in sent] == [
        ("user", "Hi"),
        ("assistant", "Well"),
    ]
    assert options["continue_final_message"] is True


async def test_a_question_is_a_chat_of_one_user_message(
    client: PlimsollClient, server: ApiServer
) -> None:
    await client.chat("Hi")
    sent, _ = server.front.chat
    assert [(message.role, message.content) for message in sent] == [("user", "Hi")]


async def test_tokenize_and_detokenize(client: PlimsollClient) -> None:
    assert await client.tokenize("ab") == Tokenization((299, 97, 98), 100, 1)
    assert (await client.tokenize([Message(Role.USER, "a")])).token_ids == (1, 97)
    assert await client.detokenize([299, 97, 98]) == "ab"
    assert await client.detokenize([299, 97], keep_special_tokens=True) == "<299>a"


async def test_abort(client: PlimsollClient, server: ApiServer) -> None:
    assert await client.abort(["a1", "b"], reason="why") == AbortOutcome(("a1",), ("b",))
    assert server.front.log == ["abort acme why"]


async def test_set_memory(client: PlimsollClient, server: ApiServer) -> None:
    request = SetMemoryUtilizationRequest(memory_utilization=0.5)
    assert (await client.set_memory(request)).after.total == 50
    assert server.front.log == ["memory 50 WAIT 30"]


async def test_model_and_stats(client: PlimsollClient) -> None:
    assert (await client.model()).model == "fake"
    assert (await client.stats()).blocks.total == 40
