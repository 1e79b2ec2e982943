"""Reads the state of a server many times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from google.protobuf.duration_pb2 import Duration

from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.api.gen.plimsoll.v1 import engine_admin_pb2 as pb
from service.client import PlimsollClient
from service.drill.sample import Ledger, Sample

SAMPLE_SECONDS = 0.1  # as often as the governor looks


class Watch:
    """The samples of a drill so far."""

    def __init__(self, admin: PlimsollClient, clock: Callable[[], float]) -> None:
        self.samples: list[Sample] = []
        self._admin = admin
        self._clock = clock

    async def run(self) -> None:
        """Reads until it is cancelled, or the server answers no more (PlimsollError)."""
        while True:
            await self.read()
            await asyncio.sleep(SAMPLE_SECONDS)

    async def read(self) -> Sample:
        """Takes one sample now."""
        stats = await self._admin.stats()
        sample = sample_from(stats, self._clock())
        self.samples.append(sample)
        return sample


def sample_from(stats: pb.GetStatsResponse, seconds: float) -> Sample:
    """One answer as a sample; `seconds` since the beginning of the drill."""
    governor, rungs = stats.governor, stats.oom_rungs
    return Sample(
        seconds=seconds,
        level=PressureLevel(stats.pressure or PressureLevel.NORMAL),
        ledger=_ledger(stats.memory) if stats.HasField("memory") else None,
        kv_exhaustion_seconds=_forecast(governor.kv_exhaustion, governor.HasField("kv_exhaustion")),
        device_exhaustion_seconds=_forecast(
            governor.device_exhaustion, governor.HasField("device_exhaustion")
        ),
        pool_blocks=stats.blocks.total,
        held_blocks=stats.blocks.active + stats.blocks.reserved,
        goal_blocks=governor.pool_goal_blocks,
        ceiling_blocks=governor.pool_ceiling_blocks,
        step_tokens=governor.step_tokens,
        admits=governor.admits or not stats.HasField("governor"),
        running=stats.running_requests,
        waiting=stats.waiting_requests,
        preempted=stats.preempted_candidates,
        preemptions=stats.preemptions_total,
        rungs=(
            rungs.retries_total,
            rungs.shrinks_total,
            rungs.requeues_total,
            rungs.failures_total,
        ),
        engine_restarts=stats.engine_restarts_total,
    )


def _ledger(memory: pb.MemoryLedger) -> Ledger:
    return Ledger(
        total_bytes=memory.total_bytes,
        free_bytes=memory.free_bytes,
        weights_bytes=memory.weights_bytes,
        kv_bytes=memory.kv_pool_bytes,
        activation_bytes=memory.activation_bytes,
        runtime_bytes=memory.graph_bytes + memory.context_bytes,
        other_bytes=memory.other_bytes,
        reclaimable_bytes=memory.reclaimable_bytes,
        headroom_bytes=memory.headroom_bytes,
        demand_bytes=memory.demand_bytes,
    )


def _forecast(forecast: Duration, is_in_sight: bool) -> float:
    return forecast.ToTimedelta().total_seconds() if is_in_sight else FOREVER_SECONDS
