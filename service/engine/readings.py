"""What the governor looks at."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GovernorReading:
    """What the governor looks at, at a step boundary. Blocks leave the null block out."""

    now_seconds: float
    pool_blocks: int  # that have memory
    ceiling_blocks: int  # that were ordered, see `PoolResizer.ceiling_blocks`
    running_blocks: int  # that the largest running sequence needs
    live_blocks: int  # that the largest live sequence needs, waiting ones included
    held_blocks: int  # by sequences
    block_bytes: int
    kv_exhaustion_seconds: float  # see `kvcache.forecast.forecast_exhaustion`
    running: int
    preempted: int
    device_total_bytes: int
    headroom_bytes: int  # free, or kept by the allocator and not in use
    demand_bytes: int  # of the largest step while nothing is wrong
    narrow_demand_bytes: int  # of the largest step at HIGH, see `Governor.prefill_tokens`
    oom_seconds: float | None = None  # when a rung of the OOM ladder was last taken

    @property
    def spare_bytes(self) -> int:
        """What pool and steps have together: a resize does not change it, what others do does."""
        return self.headroom_bytes + self.pool_blocks * self.block_bytes

    def headroom_with(self, pool_blocks: int) -> int:
        """The headroom when the pool has `pool_blocks`."""
        return self.spare_bytes - pool_blocks * self.block_bytes
