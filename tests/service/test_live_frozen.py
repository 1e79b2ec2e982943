"""The real engine, frozen or starved: the one is replaced, the other is left alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from checked_stream import CheckedStream, read_all, stream_request
from cpu_burners import burning, stand_back
from live_server import LiveServer, serve

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SILENCE_SECONDS = 1.0
TOKENS = 96  # no stream is done when the engine stops


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    flags = ["--dtype", "float32", "--kv-blocks", "600"]
    with serve(*flags, "--engine-silence-seconds", str(SILENCE_SECONDS)) as live:
        yield live


def freezing(server: LiveServer) -> list[str]:
    """The lines of the log that call an engine frozen."""
    return [line for line in server.log.read_text().splitlines() if "frozen" in line]


async def test_a_stopped_engine_is_replaced_and_streams_go_on(server: LiveServer) -> None:
    requests = [stream_request(f"{number} ways to cross the sea:", TOKENS) for number in range(4)]
    for request in requests:
        request.options.stopping.min_tokens = TOKENS
    undisturbed = await read_all(server.address, requests)
    engine = server.engine

    async def freeze(streams: list[CheckedStream]) -> None:
        await asyncio.gather(*(stream.progress.wait() for stream in streams))
        engine.suspend()

    assert await read_all(server.address, requests, freeze) == undisturbed
    assert not engine.is_running()
    (line,) = freezing(server)
    assert f"engine_silence_seconds = {SILENCE_SECONDS:g}" in line


@pytest.mark.parametrize(
    ("streams", "niceness", "max_tokens"), [(8, 0, 4), (1, 15, 2)], ids=["busy", "starved"]
)
async def test_an_engine_that_shares_its_cores_is_left_alone(
    server: LiveServer, streams: int, niceness: int, max_tokens: int
) -> None:
    prompt = "The sea is wide. " * 4
    requests = [stream_request(f"{number}. {prompt}", max_tokens) for number in range(streams)]
    engine = server.engine
    frozen_before = freezing(server)
    stand_back(engine.pid, niceness)
    with burning(2 * (os.cpu_count() or 1)):
        outcomes = await read_all(server.address, requests)
    assert all(len(token_ids) == max_tokens for _, token_ids in outcomes)
    assert server.engine.pid == engine.pid
    assert freezing(server) == frozen_before
