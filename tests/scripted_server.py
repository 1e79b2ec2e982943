"""A gRPC server that follows a script, for tests of the client and the command line.

Its model is a byte-level language model that knows one answer: a token is one byte, so
every character of more than one byte is split over tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from google.protobuf import any_pb2
from google.protobuf.message import Message
from google.rpc import code_pb2, error_details_pb2, status_pb2
from grpc import aio
from grpc_status import rpc_status

from service.api.gen.plimsoll.v1 import common_pb2, inference_pb2_grpc
from service.api.gen.plimsoll.v1 import inference_pb2 as pb

ANSWER = "  Grüße, 世界! 👩‍🚀 naïve — ok"
PROMPT = "Say it:"


@dataclass
class Script:
    """What the fake server does, call by call, and what it saw."""

    # Tokens after which the stream of call i breaks; None: it does not.
    breaks: list[int | None] = field(default_factory=list)
    # Status of a call that is refused before its first message.
    refusals: list[status_pb2.Status] = field(default_factory=list)
    pushback_ms: str | None = None
    tokens_per_message: int = 1
    answer_of_seed: Callable[[int], str] = lambda _seed: ANSWER
    strips_leading_space: bool = False  # as a sentencepiece decoder
    model: Callable[[int], str] = lambda _call: "fake@1"
    default_temperature: float | None = None
    requests: list[pb.GenerateStreamRequest | pb.ChatStreamRequest] = field(default_factory=list)
    tokenize_calls: int = 0
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    hang_after: int | None = None

    def decode(self, ids: list[int], errors: str = "replace", *, at_start: bool = True) -> str:
        text = bytes(ids).decode("utf-8", errors)
        return text.removeprefix(" ") if at_start and self.strips_leading_space else text


def status(
    code: int, reason: str, *details: Message, message: str = "scripted", **figures: str
) -> status_pb2.Status:
    info = error_details_pb2.ErrorInfo(reason=reason, domain="plimsoll.v1", metadata=figures)
    packed = []
    for detail in (info, *details):
        box = any_pb2.Any()
        box.Pack(detail)
        packed.append(box)
    return status_pb2.Status(code=code, message=message, details=packed)


UNAVAILABLE = status(code_pb2.UNAVAILABLE, "DRAINING")


class ScriptedService(inference_pb2_grpc.InferenceServiceServicer):
    def __init__(self, script: Script) -> None:
        self.script = script

    async def GetModel(self, _request: Any, _context: Any) -> Any:
        model = pb.GetModelResponse(model="fake", max_context_tokens=4096)
        if self.script.default_temperature is not None:
            model.default_sampling.temperature = self.script.default_temperature
        return model

    async def Tokenize(self, request: Any, _context: Any) -> Any:
        self.script.tokenize_calls += 1
        text = request.text or request.conversation.messages[-1].content
        return pb.TokenizeResponse(token_ids=text.encode(), max_context_tokens=4096)

    async def Detokenize(self, request: Any, _context: Any) -> Any:
        ids = list(request.token_ids)
        return pb.DetokenizeResponse(text=self.script.decode(ids), raw=bytes(ids))

    async def Generate(self, request: Any, context: Any) -> Any:
        await self._refuse(context)
        text = self.script.answer_of_seed(0)
        return pb.GenerateResponse(
            request_id=request.request_id,
            model="fake@1",
            candidates=[
                pb.Candidate(
                    text=text, token_ids=text.encode(), finish_reason=common_pb2.FINISH_REASON_EOS
                )
            ],
            usage=common_pb2.Usage(prompt_tokens=len(request.text), completion_tokens=len(text)),
        )

    async def GenerateStream(self, request: Any, context: Any) -> Any:
        ids = list(request.token_ids.ids) or list(request.text.encode())
        async for event in self._answer(request, ids, context):
            yield pb.GenerateStreamResponse(**event)

    async def ChatStream(self, request: Any, context: Any) -> Any:
        ids = list(request.conversation.messages[-1].content.encode())
        async for event in self._answer(request, ids, context):
            yield pb.ChatStreamResponse(**event)

    async def _refuse(self, context) -> None:
        if not self.script.refusals:
            return
        failure = rpc_status.to_status(self.script.refusals.pop(0))
        if self.script.pushback_ms is not None:
            pairs = (
                *failure.trailing_metadata,
                ("grpc-retry-pushback-ms", self.script.pushback_ms),
            )
            context.set_trailing_metadata(pairs)
            await context.abort(failure.code, failure.details, pairs)
        await context.abort_with_status(failure)

    async def _answer(self, request, prompt_ids, context) -> AsyncIterator[dict[str, object]]:
        script = self.script
        call = len(script.requests)
        script.requests.append(request)
        await self._refuse(context)
        at_start = isinstance(request, pb.ChatStreamRequest)
        options = request.options
        seed = options.sampling.seed or 77
        candidates = options.sampling.candidate_count or 1
        yield {
            "start": pb.StreamStart(
                request_id=request.request_id,
                model=script.model(call),
                prompt_tokens=len(prompt_ids),
                seed=seed,
            )
        }
        target = list(script.answer_of_seed(seed).encode())
        if options.stopping.HasField("max_tokens"):
            target_end = options.stopping.max_tokens
        else:
            target_end = len(target)
        done = prompt_ids[len(PROMPT) :]
        assert target[: len(done)] == done, "the prompt does not lead to the answer"
        rest = target[len(done) :][:target_end]
        limit = script.breaks[call] if call < len(script.breaks) else None
        sent = ""
        for position in range(0, len(rest), script.tokens_per_message):
            if limit is not None and position >= limit:
                await context.abort_with_status(rpc_status.to_status(UNAVAILABLE))
            if script.hang_after is not None and position >= script.hang_after:
                try:
                    await asyncio.sleep(60)
                finally:
                    script.cancelled.set()
            end = min(position + script.tokens_per_message, len(rest))
            last = end == len(rest)
            whole = script.decode(rest[:end], "replace" if last else "ignore", at_start=at_start)
            if not last:  # hold an unfinished character back
                whole = script.decode(list(_whole_characters(bytes(rest[:end]))), at_start=at_start)
            text, sent = whole[len(sent) :], whole
            yield {
                "deltas": pb.StreamDeltas(
                    deltas=[
                        pb.StreamDelta(
                            index=index,
                            text=text,
                            token_ids=rest[position:end],
                            finish_reason=common_pb2.FINISH_REASON_EOS if last else 0,
                        )
                        for index in range(candidates)
                    ]
                )
            }
        if limit is not None and limit >= len(rest):
            await context.abort_with_status(rpc_status.to_status(UNAVAILABLE))
        yield {
            "end": pb.StreamEnd(
                usage=common_pb2.Usage(
                    prompt_tokens=len(prompt_ids), completion_tokens=len(rest) * candidates
                )
            )
        }


def _whole_characters(data: bytes) -> bytes:
    for cut in range(4):
        head = data[: len(data) - cut]
        try:
            head.decode()
        except UnicodeDecodeError:
            continue
        return head
    raise AssertionError("the answer is not UTF-8")


async def start_scripted_server(
    script: Script, port: int = 0, host: str = "127.0.0.1"
) -> tuple[aio.Server, int]:
    """Serves `script` on a loopback port and tells which."""
    server = aio.server()
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(ScriptedService(script), server)
    port = server.add_insecure_port(f"{host}:{port}")
    await server.start()
    return server, port
