"""The client: one connection, all methods of the service."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Self

from grpc import aio

from service.api.gen.plimsoll.v1 import (
    engine_admin_pb2,
    engine_admin_pb2_grpc,
    inference_pb2_grpc,
)
from service.api.gen.plimsoll.v1 import (
    inference_pb2 as pb,
)
from service.client.connection import Connection, Deadline, answers
from service.client.options import GenerationOptions
from service.client.outputs import AbortOutcome, Generation, Tokenization
from service.client.requests import (
    Conversation,
    Message,
    Prompt,
    Role,
    tokenize_request,
    unary_request,
)
from service.client.retry import PATIENT, RetryPolicy
from service.client.stream import GenerationStream

DEFAULT_TARGET = "127.0.0.1:9000"
DEFAULT_ADMIN_TARGET = "127.0.0.1:9001"

_CHANNEL_OPTIONS = (
    # One retry policy, ours: that of the channel does not know what may be resumed.
    ("grpc.enable_retries", 0),
    # A server that comes back is found at once; the default waits up to 2 minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    # A dead peer is noticed within 30 s, also during a long silent prefill.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # the one that counts; 60 s by default
    # An answer with logprobs may exceed the default of 4 MiB.
    ("grpc.max_receive_message_length", 64 * 1024**2),
)


class PlimsollClient:
    """Async client of a Plimsoll server.

    async with PlimsollClient("127.0.0.1:9000") as client:
        async for chunk in client.stream("Once upon a time"):
            print(chunk.text, end="")

    Every method raises PlimsollError with the server's code, reason and figures. Transient
    errors are retried with back-off as `retry` says; a stream that broke is resumed as
    `resume` says (None: never).
    """

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        admin_target: str = DEFAULT_ADMIN_TARGET,
        model: str = "",
        metadata: Sequence[tuple[str, str]] = (),
        retry: RetryPolicy | None = None,
        resume: RetryPolicy | None = PATIENT,
    ) -> None:
        self.target = target
        self._admin_target = admin_target
        self._channel = aio.insecure_channel(target, options=_CHANNEL_OPTIONS)
        self._admin_channel: aio.Channel | None = None
        self._connection = Connection(
            stub=inference_pb2_grpc.InferenceServiceStub(self._channel),
            model=model,
            metadata=tuple(metadata),
            retry=retry or RetryPolicy(),
            resume=resume,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Cancels what is running and closes the connections."""
        await self._channel.close(None)
        if self._admin_channel is not None:
            await self._admin_channel.close(None)

    def stream(
        self,
        prompt: str | Sequence[int],
        options: GenerationOptions | None = None,
        *,
        request_id: str = "",
        timeout_seconds: float | None = None,
    ) -> GenerationStream:
        """Streams the continuation of a text, or of token ids.

        Args:
            request_id: for logs and `abort`; drawn when empty.
            timeout_seconds: for the whole answer, retries and resumptions included.
        """
        return self._stream(prompt, options, request_id, timeout_seconds)

    def chat_stream(
        self,
        messages: str | Sequence[Message] | Conversation,
        options: GenerationOptions | None = None,
        *,
        request_id: str = "",
        timeout_seconds: float | None = None,
    ) -> GenerationStream:
        """Streams the answer to a question or a conversation; arguments as `stream`."""
        return self._stream(_conversation(messages), options, request_id, timeout_seconds)

    async def generate(
        self,
        prompt: str | Sequence[int],
        options: GenerationOptions | None = None,
        *,
        request_id: str = "",
        timeout_seconds: float | None = None,
    ) -> Generation:
        """The whole continuation in one answer; arguments as `stream`."""
        return await self._generate(prompt, options, request_id, timeout_seconds)

    async def chat(
        self,
        messages: str | Sequence[Message] | Conversation,
        options: GenerationOptions | None = None,
        *,
        request_id: str = "",
        timeout_seconds: float | None = None,
    ) -> Generation:
        """The whole answer to a question or a conversation; arguments as `stream`."""
        return await self._generate(_conversation(messages), options, request_id, timeout_seconds)

    async def tokenize(
        self,
        prompt: str | Sequence[Message] | Conversation,
        *,
        timeout_seconds: float | None = None,
    ) -> Tokenization:
        """The ids a text or a conversation would have as a prompt."""
        text = prompt if isinstance(prompt, str) else _conversation(prompt)
        request = tokenize_request(text, model=self._connection.model)
        stub, metadata = self._connection.stub, self._connection.metadata
        answer = await self._connection.unary(
            lambda timeout: stub.Tokenize(request, timeout=timeout, metadata=metadata),
            Deadline(timeout_seconds),
        )
        return Tokenization(
            tuple(answer.token_ids), answer.max_context_tokens, answer.cached_prefix_tokens
        )

    async def detokenize(
        self,
        token_ids: Sequence[int],
        *,
        keep_special_tokens: bool = False,
        timeout_seconds: float | None = None,
    ) -> str:
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        request = pb.DetokenizeRequest(
            model=self._connection.model,
            token_ids=token_ids,
            keep_special_tokens=keep_special_tokens,
        )
        stub, metadata = self._connection.stub, self._connection.metadata
        answer = await self._connection.unary(
            lambda timeout: stub.Detokenize(request, timeout=timeout, metadata=metadata),
            Deadline(timeout_seconds),
        )
        return answer.text

    async def abort(
        self,
        request_ids: Sequence[str],
        *,
        reason: str = "",
        timeout_seconds: float | None = None,
    ) -> AbortOutcome:
        """Ends requests by id, from any connection of the same tenant."""
        request = pb.AbortRequestsRequest(request_ids=request_ids, reason=reason)
        stub, metadata = self._connection.stub, self._connection.metadata
        answer = await self._connection.unary(
            lambda timeout: stub.AbortRequests(request, timeout=timeout, metadata=metadata),
            Deadline(timeout_seconds),
        )
        return AbortOutcome(tuple(answer.aborted_ids), tuple(answer.unknown_ids))

    async def model(self, *, timeout_seconds: float | None = None) -> pb.GetModelResponse:
        """What is served, with its limits."""
        request = pb.GetModelRequest(model=self._connection.model)
        stub, metadata = self._connection.stub, self._connection.metadata
        return await self._connection.unary(
            lambda timeout: stub.GetModel(request, timeout=timeout, metadata=metadata),
            Deadline(timeout_seconds),
        )

    async def stats(
        self, *, timeout_seconds: float | None = None
    ) -> engine_admin_pb2.GetStatsResponse:
        """Counters and gauges of the engine, from the admin port."""
        stub, metadata = self._admin_stub(), self._connection.metadata
        request = engine_admin_pb2.GetStatsRequest()
        return await self._connection.unary(
            lambda timeout: stub.GetStats(request, timeout=timeout, metadata=metadata),
            Deadline(timeout_seconds),
        )

    async def set_memory(
        self,
        request: engine_admin_pb2.SetMemoryUtilizationRequest,
        *,
        timeout_seconds: float | None = None,
    ) -> engine_admin_pb2.SetMemoryUtilizationResponse:
        """Grows or shrinks the KV cache, through the admin port; answers what is in force."""
        stub, metadata = self._admin_stub(), self._connection.metadata
        return await self._connection.unary(
            lambda timeout: stub.SetMemoryUtilization(request, timeout=timeout, metadata=metadata),
            Deadline(timeout_seconds),
        )

    def watch_pressure(
        self,
        *,
        heartbeat_seconds: float | None = None,
        timeout_seconds: float | None = None,
    ) -> AsyncGenerator[engine_admin_pb2.WatchPressureResponse, None]:
        """The pressure on memory now, each change of level, and a message after each silence.

        From the admin port; it ends with its connection. Close it when done.

        Args:
            heartbeat_seconds: longest silence, 0.1 to 60; None: 5.
        """
        request = engine_admin_pb2.WatchPressureRequest()
        if heartbeat_seconds is not None:
            request.heartbeat.FromNanoseconds(round(heartbeat_seconds * 1e9))
        call = self._admin_stub().WatchPressure(
            request, timeout=timeout_seconds, metadata=self._connection.metadata
        )
        return answers(call)

    async def inject_faults(
        self,
        request: engine_admin_pb2.InjectFaultsRequest,
        *,
        timeout_seconds: float | None = None,
    ) -> engine_admin_pb2.InjectFaultsResponse:
        """Makes things go wrong on purpose, through the admin port; no faults end all."""
        stub, metadata = self._admin_stub(), self._connection.metadata
        return await self._connection.unary(
            lambda timeout: stub.InjectFaults(request, timeout=timeout, metadata=metadata),
            Deadline(timeout_seconds),
        )

    def _admin_stub(self) -> engine_admin_pb2_grpc.EngineAdminServiceAsyncStub:
        if self._admin_channel is None:
            self._admin_channel = aio.insecure_channel(self._admin_target, options=_CHANNEL_OPTIONS)
        return engine_admin_pb2_grpc.EngineAdminServiceStub(self._admin_channel)

    def _stream(
        self,
        prompt: Prompt,
        options: GenerationOptions | None,
        request_id: str,
        timeout_seconds: float | None,
    ) -> GenerationStream:
        return GenerationStream(
            self._connection,
            prompt,
            options or GenerationOptions(),
            request_id=request_id or uuid.uuid4().hex,
            timeout_seconds=timeout_seconds,
        )

    async def _generate(
        self,
        prompt: Prompt,
        options: GenerationOptions | None,
        request_id: str,
        timeout_seconds: float | None,
    ) -> Generation:
        connection = self._connection
        deadline = Deadline(timeout_seconds)
        request = unary_request(
            prompt, options or GenerationOptions(), model=connection.model, request_id=request_id
        )

        async def attempt(timeout_seconds: float | None) -> pb.GenerateResponse | pb.ChatResponse:
            if isinstance(request, pb.ChatRequest):
                return await connection.stub.Chat(
                    request, timeout=timeout_seconds, metadata=connection.metadata
                )
            return await connection.stub.Generate(
                request, timeout=timeout_seconds, metadata=connection.metadata
            )

        answer = await connection.unary(attempt, deadline)
        return Generation.from_proto(answer)


def _conversation(messages: str | Sequence[Message] | Conversation) -> Conversation:
    if isinstance(messages, str):
        messages = [Message(Role.USER, messages)]
    return messages if isinstance(messages, Conversation) else Conversation(messages)
