"""Streams outlive their engine: SIGKILL in the middle, and nobody loses a token."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest
from live_server import LiveServer, serve

from service.api.gen.plimsoll.v1 import inference_pb2, inference_pb2_grpc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STREAMS = 16
MAX_TOKENS = 48


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serve("--dtype", "float32", "--kv-blocks", "600") as live:
        yield live


def request(number: int, temperature: float) -> inference_pb2.GenerateStreamRequest:
    made = inference_pb2.GenerateStreamRequest(text=f"{number} ways to cross the sea:")
    made.options.sampling.temperature = temperature
    made.options.sampling.seed = 1000 + number
    made.options.stopping.max_tokens = MAX_TOKENS
    made.options.output.token_ids = True
    return made


class Stream:
    """Reads one stream, checks its grammar, and keeps what came."""

    def __init__(self) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self.first_tokens = asyncio.Event()
        self.usage = None

    async def read(
        self, stub: inference_pb2_grpc.InferenceServiceStub, number: int, temperature: float
    ) -> tuple[str, list[int]]:
        starts = 0
        async for message in stub.GenerateStream(request(number, temperature), timeout=200):
            assert self.usage is None, "a message after the end"
            match message.WhichOneof("event"):
                case "start":
                    starts += 1
                case "deltas":
                    assert starts == 1
                    for delta in message.deltas.deltas:
                        self.text += delta.text
                        self.token_ids += delta.token_ids
                    if len(self.token_ids) > 5:
                        self.first_tokens.set()
                case "end":
                    self.usage = message.end.usage
        self.first_tokens.set()
        assert self.usage is not None, "no end"
        assert self.usage.completion_tokens == len(self.token_ids)
        return self.text, self.token_ids


async def run_all(
    server: LiveServer, temperature: float, kill: bool
) -> list[tuple[str, list[int]]]:
    async with grpc.aio.insecure_channel(server.address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        streams = [Stream() for _ in range(STREAMS)]
        tasks = [
            asyncio.create_task(stream.read(stub, number, temperature))
            for number, stream in enumerate(streams)
        ]
        if kill:
            await asyncio.gather(*(stream.first_tokens.wait() for stream in streams[:8]))
            engine = server.engine
            engine.kill()
            await asyncio.to_thread(server.wait_for_new_engine, engine.pid)
        return await asyncio.gather(*tasks)


# Logits differ in their last bits with the shape of the batch, and no way to draw from them can
# be blind to that: about one sampled token in 30,000 turns out differently, of 768 here.
@pytest.mark.parametrize(
    ("temperature", "may_differ"), [(0.0, 0), (1.0, 1)], ids=["greedy", "seeded sampling"]
)
async def test_streams_are_identical_over_an_engine_kill(
    server: LiveServer, temperature: float, may_differ: int
) -> None:
    undisturbed = await run_all(server, temperature, kill=False)
    disturbed = await run_all(server, temperature, kill=True)
    assert any(len(token_ids) == MAX_TOKENS for _, token_ids in undisturbed)
    differing = [i for i in range(STREAMS) if disturbed[i] != undisturbed[i]]
    assert len(differing) <= may_differ, [(disturbed[i], undisturbed[i]) for i in differing]
