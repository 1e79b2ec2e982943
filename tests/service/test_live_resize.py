"""Live resize over gRPC, with a real model: streams go on, and memory really comes and goes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from live_server import LiveServer, serve

from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.cli import main
from service.client import GenerationOptions, PlimsollClient, PlimsollError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POOL_BLOCKS = 80
BLOCK_BYTES = 30 * 2 * 16 * 3 * 64 * 4  # SmolLM2-135M in float32
OPTIONS = GenerationOptions(max_tokens=120, temperature=0.0, ignore_eos=True)
UNDER_WAY_TOKENS = 66  # in more than half of the pool, with the prompts
PROMPTS = [
    f"Chapter {number}. {opening}"
    for number, opening in enumerate(
        [
            "The lighthouse keeper climbed the stairs with a lamp in his hand, and",
            "Bread needs four things: flour, water, salt and time. The baker knows that",
            "When the train stopped between two stations, the passengers looked up and",
            "A river does not ask where the sea is. It only follows the ground, because",
            "In the year of the great frost the harbour was closed for three months, so",
            "The teacher drew a circle on the board and asked the class what it was, but",
            "Nobody in the village remembered who had built the bridge, although",
            "Mushrooms are neither plants nor animals. What we see of them in autumn is",
        ],
        1,
    )
]
Request = pb.SetMemoryUtilizationRequest


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """A pool that nearly fills with the eight requests, and may grow to ten times that."""
    most_bytes = str((10 * POOL_BLOCKS + 1) * BLOCK_BYTES)
    flags = ["--kv-blocks", str(POOL_BLOCKS), "--kv-memory-max-bytes", most_bytes]
    with serve("--dtype", "float32", "--load-line", "1.0", "--allow-ignore-eos", *flags) as live:
        yield live


def connect(server: LiveServer) -> PlimsollClient:
    return PlimsollClient(server.address, admin_target=server.admin_address)


class Streams:
    """All prompts, streamed at once."""

    def __init__(self, client: PlimsollClient) -> None:
        self._client = client
        self._tokens = [0] * len(PROMPTS)
        self.under_way = asyncio.Event()  # each has produced `UNDER_WAY_TOKENS`

    async def texts(self) -> list[str]:
        return await asyncio.gather(*(self._text(index) for index in range(len(PROMPTS))))

    async def _text(self, index: int) -> str:
        text = ""
        async with self._client.stream(PROMPTS[index], OPTIONS) as stream:
            async for chunk in stream:
                text += chunk.text
                self._tokens[index] += len(chunk.token_ids)
                if min(self._tokens) >= UNDER_WAY_TOKENS:
                    self.under_way.set()
        return text


@pytest.mark.parametrize("policy", [pb.SHRINK_POLICY_WAIT, pb.SHRINK_POLICY_PREEMPT])
async def test_half_the_pool_goes_and_comes_back_under_eight_streams(
    server: LiveServer, policy: pb.ShrinkPolicy
) -> None:
    async with connect(server) as client:
        undisturbed = await Streams(client).texts()
        assert len(set(undisturbed)) == 8
        streams = Streams(client)
        disturbed = asyncio.create_task(streams.texts())
        await streams.under_way.wait()
        shrunk = await client.set_memory(
            Request(
                total_blocks=POOL_BLOCKS // 2,
                shrink_policy=policy,
                time_limit=Duration(seconds=600),  # until streams end, on any machine
            )
        )
        assert (shrunk.before.total, shrunk.after.total) == (POOL_BLOCKS, POOL_BLOCKS // 2)
        assert shrunk.before.active > POOL_BLOCKS // 2
        assert (shrunk.preempted_candidates > 0) == (policy == pb.SHRINK_POLICY_PREEMPT)
        grown = await client.set_memory(Request(memory_utilization=0.1))
        assert grown.after.total == POOL_BLOCKS
        assert await disturbed == undisturbed


def engine_bytes(server: LiveServer) -> int:
    return server.engine.memory_info().rss


async def test_the_memory_of_the_process_follows(server: LiveServer) -> None:
    async with connect(server) as client:
        before = engine_bytes(server)
        grown = await client.set_memory(Request(memory_utilization=1.0))
        assert grown.after.total == grown.after.max_total == 10 * POOL_BLOCKS
        taken = engine_bytes(server) - before
        assert taken > 0.9 * 9 * POOL_BLOCKS * BLOCK_BYTES, "promised memory is there at once"
        await client.set_memory(Request(total_blocks=POOL_BLOCKS))
        given_back = before + taken - engine_bytes(server)
        assert given_back > 0.9 * 9 * POOL_BLOCKS * BLOCK_BYTES


async def test_a_new_engine_keeps_to_the_size_in_force(server: LiveServer) -> None:
    async with connect(server) as client:
        await client.set_memory(Request(total_blocks=48))
        old = server.engine
        old.kill()
        await asyncio.to_thread(server.wait_for_new_engine, old.pid)
        await client.generate("One", GenerationOptions(max_tokens=1))
        assert (await client.stats()).blocks.total == 48
        await client.set_memory(Request(total_blocks=POOL_BLOCKS))


def test_from_the_command_line(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--admin-server", server.admin_address]
    assert main(["memory", "5%", *where]) == 0
    assert capsys.readouterr().out.startswith("80 -> 40 blocks (29 MB), at most 800; 0 preempted")
    assert main(["memory", "80", *where]) == 0


async def test_more_than_the_machine_has_is_refused_and_changes_nothing() -> None:
    flags = ["--kv-blocks", "16", "--kv-memory-max-bytes", "4096GiB"]
    with serve(*flags) as server:
        async with connect(server) as client:
            with pytest.raises(PlimsollError) as caught:
                await client.set_memory(Request(memory_utilization=1.0))
            assert caught.value.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.reason == "MEMORY_SHORT"
            assert (await client.stats()).blocks.total == 16
