"""Streams of a real server whose grammar is checked while they are read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

import grpc

from service.api.gen.plimsoll.v1 import inference_pb2, inference_pb2_grpc


@dataclass(slots=True)
class CheckedStream:
    """One stream: one start, deltas, one end that agrees with them; and what came so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    completion_tokens: int | None = None
    progress: asyncio.Event = field(default_factory=asyncio.Event)
    on_tokens: Callable[[], None] = lambda: None

    async def read(
        self,
        stub: inference_pb2_grpc.InferenceServiceStub,
        request: inference_pb2.GenerateStreamRequest,
    ) -> tuple[str, list[int]]:
        """Reads to the end; answers the text and the token ids."""
        starts = 0
        async for message in stub.GenerateStream(request):
            assert self.completion_tokens is None, "a message after the end"
            match message.WhichOneof("event"):
                case "start":
                    starts += 1
                case "deltas":
                    assert starts == 1, f"{starts} starts"
                    for delta in message.deltas.deltas:
                        self.text += delta.text
                        self.token_ids += delta.token_ids
                    self.on_tokens()
                case "end":
                    self.completion_tokens = message.end.usage.completion_tokens
            self.progress.set()
        assert self.completion_tokens == len(self.token_ids), "tokens were lost or repeated"
        return self.text, self.token_ids


async def read_all(
    address: str,
    requests: Sequence[inference_pb2.GenerateStreamRequest],
    meanwhile: Callable[[list[CheckedStream]], Awaitable[None]] | None = None,
) -> list[tuple[str, list[int]]]:
    """Reads these streams at once, while something else goes on."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        streams = [CheckedStream() for _ in requests]
        tasks = [
            asyncio.create_task(stream.read(stub, request))
            for stream, request in zip(streams, requests, strict=True)
        ]
        if meanwhile is not None:
            await meanwhile(streams)
        return await asyncio.gather(*tasks)


def stream_request(
    text: str, max_tokens: int, temperature: float = 0.0, seed: int = 0
) -> inference_pb2.GenerateStreamRequest:
    """A request that answers with token ids, too."""
    made = inference_pb2.GenerateStreamRequest(text=text)
    made.options.sampling.temperature = temperature
    made.options.sampling.seed = seed
    made.options.stopping.max_tokens = max_tokens
    made.options.output.token_ids = True
    return made
