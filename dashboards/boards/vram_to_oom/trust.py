"""Whether what the dashboard shows is fresh and whole."""

from __future__ import annotations

from dashboards.boards.panels import (
    Limits,
    Note,
    PanelBuilder,
    Unit,
    events,
    lines,
)
from dashboards.boards.queries import (
    PER_GPU,
    SERVER,
    Query,
    gauge,
    highest,
    increase,
    lowest,
    named,
    total,
)
from service.telemetry.catalog import gpu, memory


def panels() -> tuple[PanelBuilder, ...]:
    """Panels of the section."""
    return (
        lines(
            "Age of samples",
            Query(f"time() - {lowest(gauge(memory.SAMPLED), SERVER)}", named("memory")),
            Query(f"time() - {lowest(gauge(gpu.SAMPLED), SERVER)}", named("GPU")),
            unit=Unit.SECONDS,
            note=Note(
                "How long ago the engine looked at its memory, and the sampler at the GPU. From "
                "the end of an engine until the next one is ready nobody looks at memory: lines "
                "of it have a gap.",
                "Above 30 s this dashboard is blind: the engine hangs, or the driver does.",
            ),
            limits=Limits("green", ((10, "orange"), (30, "red"))),
        ),
        lines(
            "What the driver tells",
            Query(lowest(gauge(gpu.AVAILABLE), SERVER), named("NVML there")),
            Query(
                lowest(gauge(gpu.PROCESS_MEMORY_KNOWN), PER_GPU),
                named("GPU {{gpu}} known"),
            ),
            unit=Unit.COUNT,
            note=Note(
                "1 where NVML can be asked, and where it tells the memory of this server's "
                "processes; in containers it often does not.",
                "0 on a machine with a GPU: mount the driver. Unknown processes: the line of this "
                "server is missing above, use the ledger.",
            ),
            full=1,
        ),
        lines(
            "GPU utilization",
            Query(highest(gauge(gpu.UTILIZATION), PER_GPU), named("GPU {{gpu}}")),
            unit=Unit.SHARE,
            note=Note(
                "Share of time in which the GPU ran anything, as nvidia-smi has it.",
                "Low with requests waiting: closed admissions or a front that is late.",
            ),
            full=1,
        ),
        events(
            "Failures of the GPU sampler",
            Query(total(increase(gpu.FAILURES), SERVER), named()),
            note=Note(
                "Times that NVML could not be asked or answered with an error.",
                "A GPU that fell off the bus answers only errors: see `dmesg` for its XID.",
            ),
        ),
    )
