"""EngineAdminService: what an operator of the pod asks and orders."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator

from service.api.checks import Checks, seconds_of
from service.api.dispatch import MAX_TENANT_BYTES, Call, is_identifier
from service.api.faults import check_faults_request
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.api.memory import check_memory_request, memory_message
from service.api.stats import pressure_message, stats_message
from service.api.validation import MAX_SALT_BYTES
from service.front.admin_actions import AdminAction
from service.front.events import NotReady
from service.front.front import Front

HEARTBEAT_DEFAULT_SECONDS = 5.0
HEARTBEAT_RANGE_SECONDS = (0.1, 60.0)
MAX_GRACE_SECONDS = 86400.0


class EngineAdminServicer:
    """Methods are named after the RPCs; `service.api.dispatch` registers them."""

    def __init__(self, front: Front, write_limit_seconds: float) -> None:
        self._front = front
        self._write_limit_seconds = write_limit_seconds

    async def GetStats(self, _request: pb.GetStatsRequest, _: Call) -> pb.GetStatsResponse:
        return stats_message(self._front.stats(), time.monotonic())

    async def WatchPressure(self, request: pb.WatchPressureRequest, call: Call) -> None:
        """The state now, each change of level, and a message after each silent heartbeat."""
        heartbeat_seconds = HEARTBEAT_DEFAULT_SECONDS
        if request.HasField("heartbeat"):
            checks = Checks()
            heartbeat_seconds = seconds_of(request.heartbeat)
            checks.in_range("heartbeat", heartbeat_seconds, *HEARTBEAT_RANGE_SECONDS, "seconds")
            checks.finish()
        async with contextlib.aclosing(beats(self._front.watch(), heartbeat_seconds)) as ticks:
            async for _ in ticks:
                await call.write(pressure_message(self._front.stats()), self._write_limit_seconds)

    async def SetMemoryUtilization(
        self, request: pb.SetMemoryUtilizationRequest, _: Call
    ) -> pb.SetMemoryUtilizationResponse:
        model = self._front.model
        if model is None:
            raise NotReady
        order = check_memory_request(request, model)
        self._front.ordered(AdminAction.SET_MEMORY_UTILIZATION)
        before = self._front.stats()
        change = await self._front.set_memory(
            order.num_blocks, policy=order.policy, limit_seconds=order.limit_seconds
        )
        return memory_message(change, before, self._front.stats())

    async def FlushCache(self, request: pb.FlushCacheRequest, _: Call) -> pb.FlushCacheResponse:
        checks = Checks()
        if not is_identifier(request.tenant, MAX_TENANT_BYTES):
            limit = f"must be at most {MAX_TENANT_BYTES} bytes of printable ASCII"
            checks.refuse("tenant", request.tenant, limit)
        checks.at_most_bytes("salt", request.salt, MAX_SALT_BYTES)
        checks.finish()
        self._front.ordered(AdminAction.FLUSH)
        flushes_all = not (request.tenant or request.salt)
        result = await self._front.flush(
            tenant=None if flushes_all else request.tenant, salt=request.salt
        )
        return pb.FlushCacheResponse(
            dropped_blocks=result.dropped_blocks, kept_blocks=result.kept_blocks
        )

    async def Drain(self, request: pb.DrainRequest, _: Call) -> pb.DrainResponse:
        grace_seconds: float | None = None
        if request.HasField("grace"):
            checks = Checks()
            grace_seconds = seconds_of(request.grace)
            checks.in_range("grace", grace_seconds, 0, MAX_GRACE_SECONDS, "seconds")
            checks.finish()
        self._front.ordered(AdminAction.DRAIN)
        result = await self._front.drain(grace_seconds)
        return pb.DrainResponse(
            completed_requests=result.completed, aborted_requests=result.aborted
        )

    async def Resume(self, _request: pb.ResumeRequest, _: Call) -> pb.ResumeResponse:
        self._front.ordered(AdminAction.RESUME)
        self._front.resume()
        return pb.ResumeResponse()

    async def InjectFaults(
        self, request: pb.InjectFaultsRequest, _: Call
    ) -> pb.InjectFaultsResponse:
        replaced = self._front.inject_faults(check_faults_request(request))
        self._front.ordered(AdminAction.INJECT_FAULTS)
        return pb.InjectFaultsResponse(replaced_faults=replaced)


async def beats(
    changes: AsyncIterator[object], silence_seconds: float
) -> AsyncGenerator[None, None]:
    """Ticks with each item of `changes`, and whenever there was none for `silence_seconds`."""
    pending = asyncio.ensure_future(anext(changes))
    try:
        while True:
            done, _ = await asyncio.wait([pending], timeout=silence_seconds)
            if done:
                pending.result()
                pending = asyncio.ensure_future(anext(changes))
            yield
    finally:
        pending.cancel()
