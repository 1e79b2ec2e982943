"""SetMemoryUtilization: what is asked for becomes blocks, and the answer what is in force."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import pytest
from api_fakes import ApiServer, FakeFront, api_server, refused
from google.protobuf.duration_pb2 import Duration

from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.front.admin_actions import AdminAction
from service.front.state import MemoryShort

Request = pb.SetMemoryUtilizationRequest


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    """The pool has 40 blocks of 1,024 bytes and can grow to 100."""
    async with api_server(FakeFront()) as running:
        yield running


@pytest.mark.parametrize(
    ("request_", "blocks"),
    [
        (Request(total_blocks=1), 1),
        (Request(total_blocks=100), 100),
        (Request(memory_utilization=1.0), 100),
        (Request(memory_utilization=0.509), 50),
        (Request(memory_utilization=1e-9), 1),
        (Request(memory_bytes=2048), 1),  # the null block needs one of the two
        (Request(memory_bytes=51 * 1024 + 1023), 50),
        (Request(memory_bytes=101 * 1024), 100),
    ],
)
async def test_targets(server: ApiServer, request_: Request, blocks: int) -> None:
    answer = await server.admin.SetMemoryUtilization(request_)
    assert server.front.log == [f"memory {blocks} WAIT 30"]
    assert server.front.orders == [AdminAction.SET_MEMORY_UTILIZATION]
    assert answer.after.total == blocks


async def test_the_answer_tells_before_after_and_the_price(server: ApiServer) -> None:
    answer = await server.admin.SetMemoryUtilization(
        Request(
            total_blocks=20,
            shrink_policy=pb.SHRINK_POLICY_PREEMPT,
            time_limit=Duration(seconds=3, nanos=500_000_000),
        )
    )
    assert server.front.log == ["memory 20 PREEMPT 3.5"]
    assert (answer.before.total, answer.before.max_total, answer.before.active) == (40, 100, 7)
    assert (answer.after.total, answer.after.bytes_per_block) == (20, 1024)
    assert answer.preempted_candidates == 2
    assert answer.elapsed.ToMilliseconds() == 500


async def test_an_engine_that_has_not_reported_yet(server: ApiServer) -> None:
    server.front.engine = None
    answer = await server.admin.SetMemoryUtilization(Request(total_blocks=20))
    assert (answer.before.total, answer.after.total) == (40, 20)


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (Request(), "target"),
        (Request(total_blocks=0), "total_blocks"),
        (Request(total_blocks=101), "total_blocks"),
        (Request(total_blocks=2**64 - 1), "total_blocks"),
        (Request(memory_utilization=0), "memory_utilization"),
        (Request(memory_utilization=1.001), "memory_utilization"),
        (Request(memory_utilization=-0.5), "memory_utilization"),
        (Request(memory_utilization=float("nan")), "memory_utilization"),
        (Request(memory_utilization=float("inf")), "memory_utilization"),
        (Request(memory_bytes=2047), "memory_bytes"),
        (Request(memory_bytes=101 * 1024 + 1), "memory_bytes"),
        (Request(total_blocks=9, shrink_policy=7), "shrink_policy"),  # type: ignore[arg-type]
        (Request(total_blocks=9, time_limit=Duration()), "time_limit"),
        (Request(total_blocks=9, time_limit=Duration(seconds=3601)), "time_limit"),
    ],
)
async def test_limits(server: ApiServer, request_: Request, path: str) -> None:
    refusal = await refused(server.admin.SetMemoryUtilization(request_))
    assert refusal.code is grpc.StatusCode.INVALID_ARGUMENT
    assert list(refusal.fields) == [path]
    assert server.front.log == server.front.orders == []


async def test_too_little_memory_to_grow(server: ApiServer) -> None:
    server.front.memory_error = MemoryShort(5000, 4000, 3000, total_blocks=40)
    refusal = await refused(server.admin.SetMemoryUtilization(Request(total_blocks=90)))
    assert refusal.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert refusal.reason == "MEMORY_SHORT"
    assert refusal.info is not None
    assert dict(refusal.info.metadata) == {
        "wanted_bytes": "5000",
        "available_bytes": "4000",
        "headroom_bytes": "3000",
        "total_blocks": "40",
    }


async def test_a_server_that_is_still_loading(server: ApiServer) -> None:
    server.front.model = None
    refusal = await refused(server.admin.SetMemoryUtilization(Request(total_blocks=9)))
    assert refusal.reason == "NOT_READY"
