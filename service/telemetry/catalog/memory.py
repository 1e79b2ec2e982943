"""Memory of the device, forecasts of its end, and what is done against it."""

from __future__ import annotations

from service.telemetry.catalog.metric import Kind, Label, Metric

OWNED = Metric(
    name="plimsoll_device_memory_owned_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Device memory by what it is for; others: other processes, and what nobody claims. With "
    "what is free, all owners add up to the capacity.",
    labels=(Label("owner", ("weights", "kv_pool", "activations", "graphs", "context", "others")),),
)
CAPACITY = Metric(
    name="plimsoll_device_memory_capacity_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Device memory, as far as this server may see it.",
)
FREE = Metric(
    name="plimsoll_device_memory_free_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Device memory that nobody has.",
)
RECLAIMABLE = Metric(
    name="plimsoll_device_memory_reclaimable_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Device memory that the allocator keeps and nothing uses: free if need be.",
)
HEADROOM = Metric(
    name="plimsoll_device_headroom_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Free and reclaimable device memory: a step that needs more than this runs out of it.",
)
DEMAND = Metric(
    name="plimsoll_device_demand_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="What the largest next step takes. The device runs out of memory where this line crosses "
    "that of the headroom.",
)
HEADROOM_LOW = Metric(
    name="plimsoll_device_headroom_low_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Least headroom of the last 60 s, so that no scrape misses a dip between two.",
)
DEMAND_HIGH = Metric(
    name="plimsoll_device_demand_high_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Largest demand of the last 60 s, so that no scrape misses a peak between two.",
)
HOST_AVAILABLE = Metric(
    name="plimsoll_host_memory_available_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Memory of the machine or the container that can still be had.",
)
SAMPLED = Metric(
    name="plimsoll_memory_sample_timestamp_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="When the engine last looked at its memory, in Unix time. An old one means blindness.",
)
KV_EXHAUSTION = Metric(
    name="plimsoll_kv_time_to_exhaustion_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="Forecast: until no block of the KV pool is free. 86400: not in sight.",
)
DEVICE_EXHAUSTION = Metric(
    name="plimsoll_device_time_to_exhaustion_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="Forecast: until a step finds no device memory. 86400: not in sight.",
)
PRESSURE = Metric(
    name="plimsoll_pressure_level",
    kind=Kind.GAUGE,
    help="How near the end of memory or queue is: 1 normal, 2 elevated, 3 high, 4 critical.",
)
ALLOCATOR_ALLOCATED = Metric(
    name="plimsoll_allocator_allocated_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Device memory that the allocator has given out: tensors that live. Blocks of the KV "
    "pool are not its own.",
)
ALLOCATOR_RESERVED = Metric(
    name="plimsoll_allocator_reserved_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Device memory that the allocator has: given out, and kept for the next tensors.",
)
ALLOCATOR_INACTIVE = Metric(
    name="plimsoll_allocator_inactive_bytes",
    kind=Kind.GAUGE,
    unit="bytes",
    help="Of what the allocator keeps, unused parts of segments that are in use: it cannot give "
    "them back, and a large tensor may not fit into any. 0 where memory is not cut into segments.",
)
ALLOCATOR_RETRIES = Metric(
    name="plimsoll_allocator_retries_total",
    kind=Kind.COUNTER,
    help="Allocations that succeeded only after the allocator had given back what it kept.",
)
ALLOCATOR_OOMS = Metric(
    name="plimsoll_allocator_ooms_total",
    kind=Kind.COUNTER,
    help="Allocations that failed, though the allocator had given back what it kept.",
)
LAST_OOM = Metric(
    name="plimsoll_last_oom_timestamp_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="When a step last found no device memory, in Unix time, as far back as flight records "
    "reach: it outlives the server. 0: never.",
)
OOM_RUNGS = Metric(
    name="plimsoll_oom_rungs_total",
    kind=Kind.COUNTER,
    help="Steps that found no device memory, by what was done: retry in smaller steps; shrink the "
    "KV pool; requeue all sequences but one; fail the one that does not fit alone.",
    labels=(Label("rung", ("retry", "shrink", "requeue", "fail")),),
)
GOVERNOR_ACTIONS = Metric(
    name="plimsoll_governor_actions_total",
    kind=Kind.COUNTER,
    help="What the governor did before memory ran out: narrow prefill; close admissions; shrink "
    "the KV pool; grow it again.",
    labels=(Label("action", ("narrow", "close", "shrink", "grow")),),
)
STEP_BUDGET = Metric(
    name="plimsoll_step_budget_tokens",
    kind=Kind.GAUGE,
    unit="tokens",
    help="Most tokens that a step may compute now.",
)
PREFILL_BUDGET = Metric(
    name="plimsoll_prefill_budget_tokens",
    kind=Kind.GAUGE,
    unit="tokens",
    help="Most tokens of prompts that a step may compute now.",
)
ADMISSIONS_OPEN = Metric(
    name="plimsoll_admissions_open",
    kind=Kind.GAUGE,
    help="1 while sequences that wait may enter the batch, 0 while the governor holds them back.",
)

METRICS = (
    *(OWNED, CAPACITY, FREE, RECLAIMABLE, HEADROOM, DEMAND, HEADROOM_LOW, DEMAND_HIGH),
    *(HOST_AVAILABLE, SAMPLED, KV_EXHAUSTION, DEVICE_EXHAUSTION, PRESSURE),
    *(ALLOCATOR_ALLOCATED, ALLOCATOR_RESERVED, ALLOCATOR_INACTIVE),
    *(ALLOCATOR_RETRIES, ALLOCATOR_OOMS, LAST_OOM, OOM_RUNGS),
    *(GOVERNOR_ACTIONS, STEP_BUDGET, PREFILL_BUDGET, ADMISSIONS_OPEN),
)
