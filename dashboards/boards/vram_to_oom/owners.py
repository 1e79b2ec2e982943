"""Who has the memory, as the driver, the allocator and the ledger see it."""

from __future__ import annotations

from dashboards.boards.panels import (
    Note,
    Paint,
    PanelBuilder,
    Unit,
    lines,
)
from dashboards.boards.queries import (
    PER_GPU,
    SERVER,
    Query,
    gauge,
    highest,
    named,
    total,
)
from service.telemetry.catalog import gpu, memory


def panels() -> tuple[PanelBuilder, ...]:
    """Panels of the section."""
    used = f"({gauge(memory.CAPACITY)} - {gauge(memory.FREE)})"
    return (
        lines(
            "GPU memory as nvidia-smi sees it",
            Query(highest(gauge(gpu.CAPACITY), PER_GPU), named("GPU {{gpu}} capacity")),
            Query(highest(gauge(gpu.USED), PER_GPU), named("GPU {{gpu}} used (NVML)")),
            Query(highest(gauge(gpu.PROCESS_MEMORY), PER_GPU), named("GPU {{gpu}} this server")),
            Query(highest(gauge(gpu.RESERVED), PER_GPU), named("GPU {{gpu}} driver")),
            Query(total(gauge(memory.ALLOCATOR_RESERVED), SERVER), named("allocator reserved")),
            Query(total(gauge(memory.ALLOCATOR_ALLOCATED), SERVER), named("allocator allocated")),
            unit=Unit.BYTES,
            height=10,
            note=Note(
                "The gaps are the diagnosis. Used above this server: other processes. This server "
                "above reserved: memory outside the allocator (context, graphs, libraries). "
                "Reserved above allocated: kept and unused, or fragments.",
                "The gap that grows names the culprit. Without a GPU only the allocator's lines "
                "can be there, and the panel beside this one tells.",
            ),
            paints={
                "capacity": Paint("red"),
                r"used \(NVML\)": Paint("orange"),
                "this server": Paint("yellow"),
                "driver": Paint("text", dashed=True),
                "reserved": Paint("blue"),
                "allocated": Paint("green", filled=True),
            },
        ),
        lines(
            "Device memory as the server sees it",
            Query(highest(gauge(memory.CAPACITY), SERVER), named("capacity")),
            Query(highest(used, SERVER), named("used")),
            Query(highest(gauge(memory.RECLAIMABLE), SERVER), named("reclaimable")),
            unit=Unit.BYTES,
            height=10,
            note=Note(
                "Memory of the device (without a GPU: of the machine or container) that the "
                "server may see, what of it is used by anybody, and what the allocator keeps "
                "unused.",
                "Used near capacity is no alarm by itself: a pool that was allocated at the start "
                "looks like that for ever. Compare headroom with demand below.",
            ),
            paints={
                "capacity": Paint("red"),
                "used": Paint("orange", filled=True),
                "reclaimable": Paint("blue", dashed=True),
            },
        ),
        lines(
            "Memory by owner",
            Query(total(gauge(memory.OWNED), ("owner",)), "{{owner}}"),
            Query(total(gauge(memory.FREE)), "free"),
            unit=Unit.BYTES,
            height=10,
            width=24,
            note=Note(
                "Who has the device's memory; with what is free, all owners add up to the "
                "capacity. others: other processes, and what nobody claims.",
                "activations: long prompts, lower the prefill budget. kv_pool: lower the memory "
                "utilization. others: find the process with nvidia-smi. weights and context do "
                "not grow in a healthy server.",
            ),
            stacked=True,
        ),
    )
