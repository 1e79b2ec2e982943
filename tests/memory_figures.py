"""Figures of memory that tests send through the front and the API."""

from __future__ import annotations

from kvcache.pressure import PressureLevel
from service.engine.figures import Vitals

VITALS = Vitals(
    taken_seconds=1.0,
    level=PressureLevel.HIGH,
    device_total_bytes=10_000,
    device_free_bytes=1_000,
    weights_bytes=4_000,
    kv_bytes=2_500,
    activation_bytes=800,
    graph_bytes=70,
    context_bytes=600,
    other_bytes=1_030,
    reclaimable_bytes=500,
    demand_bytes=900,
    host_available_bytes=20_000,
    kv_exhaustion_seconds=2.5,
    device_exhaustion_seconds=8.0,
    step_tokens=512,
    prefill_tokens=128,
    admits=False,
    pool_goal_blocks=30,
    pool_ceiling_blocks=40,
    allocator_retries=3,
    rungs=(4, 3, 2, 1),
    actions=(11, 12, 13, 14),
    allocator_allocated_bytes=4_370,
    allocator_reserved_bytes=4_870,
    allocator_inactive_bytes=40,
    allocator_ooms=2,
    headroom_low_bytes=200,
    demand_high_bytes=950,
)
