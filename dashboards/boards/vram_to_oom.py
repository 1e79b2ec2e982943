"""The way to an out-of-memory error: from normal over each precursor to what survived it."""

from __future__ import annotations

from dashboards.boards import common, states, uids
from dashboards.boards.annotations import all_events
from dashboards.boards.board import Board, Section, board
from dashboards.boards.panels import (
    Limits,
    Note,
    Paint,
    PanelBuilder,
    Unit,
    events,
    lines,
    timeline,
    value,
)
from dashboards.boards.pending import (
    GPU_CAPACITY,
    GPU_FAILURES,
    GPU_PROCESS,
    GPU_PROCESS_KNOWN,
    GPU_RESERVED,
    GPU_SAMPLED,
    GPU_USED,
    GPU_UTILIZATION,
    NVML_AVAILABLE,
    PREEMPTIONS,
)
from dashboards.boards.queries import (
    POD,
    Query,
    code_of_state,
    gauge,
    highest,
    increase,
    lowest,
    quantile,
    share_or_zero,
    total,
)
from service.telemetry.catalog import cache, memory, requests, server

_GPU = ("pod", "gpu")


def build() -> Board:
    """The dashboard."""
    return board(
        uids.VRAM_TO_OOM,
        "VRAM to OOM",
        "Why memory runs out, when, and what was done about it. Choose one pod; read from top to "
        "bottom along the crosshair.",
        (
            Section("Where we are", _state()),
            Section("Who has the memory", _owners()),
            Section("How near the end", _nearness()),
            Section("What is done about it", _measures()),
            Section("What clients notice", _symptoms()),
            Section("Can these numbers be trusted", _trust()),
        ),
        all_events(),
        ("oom",),
    )


def _state() -> tuple[PanelBuilder, ...]:
    return (
        timeline(
            "Pressure and state",
            Query(highest(gauge(memory.PRESSURE), POD), "{{pod}} pressure"),
            names=states.PRESSURE,
            width=12,
            note=Note(
                "How near the end of memory or queue each server is, by the judgement of its "
                "governor.",
                "Find where it leaves normal and read the rows below at that time.",
            ),
        ),
        timeline(
            "State of servers",
            Query(code_of_state(server.STATE, "state"), "{{pod}}"),
            names=states.SERVER,
            width=12,
            note=Note(
                "What each server does. restarting: its engine died and is replaced.",
                "restarting after critical pressure is an out-of-memory error that was not "
                "survived: see the flight record with `plimsoll flight`.",
            ),
        ),
        value(
            "Device runs out in",
            Query(lowest(gauge(memory.DEVICE_EXHAUSTION)), "device"),
            unit=Unit.SECONDS,
            note=Note(
                "Forecast of the engine, ten times a second, until a step finds no device memory.",
                "Below a minute: send the server no more, or lower its memory utilization.",
            ),
            limits=common.TIME_LEFT_SECONDS,
            names=common.TIME_LEFT_NAMES,
            width=6,
        ),
        value(
            "KV pool runs out in",
            Query(lowest(gauge(memory.KV_EXHAUSTION)), "KV pool"),
            unit=Unit.SECONDS,
            note=Note(
                "Forecast of the engine until no KV block is free. That is preemption, not an "
                "out-of-memory error.",
                "See KV cache.",
            ),
            limits=common.TIME_LEFT_SECONDS,
            names=common.TIME_LEFT_NAMES,
            width=6,
        ),
        value(
            "Headroom over demand",
            Query(lowest(_cover()), "times"),
            unit=Unit.COUNT,
            note=Note(
                "How many times the memory that can be had covers the largest next step, on the "
                "worst server. Below 1 a step fails.",
                "Below 1.25: lower the step budget or the memory utilization, find who grows "
                "in the ledger.",
            ),
            limits=Limits("red", ((1, "orange"), (1.25, "green"))),
            width=6,
        ),
        value(
            "Last out of memory",
            Query(f"1000 * {highest(gauge(memory.LAST_OOM))}", "last"),
            unit=Unit.AGE,
            note=Note(
                "When a step last found no device memory. It outlives the server.",
                "`plimsoll flight` shows the minute before it.",
            ),
            names={0.0: ("never", "green")},
            limits=Limits("orange"),
            width=6,
        ),
    )


def _cover() -> str:
    demand = highest(gauge(memory.DEMAND), POD)
    return f"{lowest(gauge(memory.HEADROOM), POD)} / clamp_min({demand}, 1)"


def _owners() -> tuple[PanelBuilder, ...]:
    used = f"({gauge(memory.CAPACITY)} - {gauge(memory.FREE)})"
    return (
        lines(
            "GPU memory as nvidia-smi sees it",
            Query(highest(gauge(GPU_CAPACITY), _GPU), "{{pod}} GPU {{gpu}} capacity"),
            Query(highest(gauge(GPU_USED), _GPU), "{{pod}} GPU {{gpu}} used (NVML)"),
            Query(highest(gauge(GPU_PROCESS), _GPU), "{{pod}} GPU {{gpu}} this server"),
            Query(highest(gauge(GPU_RESERVED), _GPU), "{{pod}} GPU {{gpu}} driver"),
            Query(total(gauge(memory.ALLOCATOR_RESERVED), POD), "{{pod}} allocator reserved"),
            Query(total(gauge(memory.ALLOCATOR_ALLOCATED), POD), "{{pod}} allocator allocated"),
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
                "used": Paint("orange"),
                "this server": Paint("yellow"),
                "driver": Paint("text", dashed=True),
                "reserved": Paint("blue"),
                "allocated": Paint("green", filled=True),
            },
        ),
        lines(
            "Device memory as the server sees it",
            Query(highest(gauge(memory.CAPACITY), POD), "{{pod}} capacity"),
            Query(highest(used, POD), "{{pod}} used"),
            Query(highest(gauge(memory.RECLAIMABLE), POD), "{{pod}} reclaimable"),
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


def _nearness() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Headroom against demand",
            Query(lowest(gauge(memory.HEADROOM), POD), "{{pod}} headroom"),
            Query(lowest(gauge(memory.HEADROOM_LOW), POD), "{{pod}} lowest headroom of 60 s"),
            Query(highest(gauge(memory.DEMAND), POD), "{{pod}} demand of the next step"),
            Query(highest(gauge(memory.DEMAND_HIGH), POD), "{{pod}} highest demand of 60 s"),
            unit=Unit.BYTES,
            height=10,
            width=24,
            note=Note(
                "What a step can get, and what the largest next step takes. Where the lines cross "
                "the step finds no memory. The extremes of the last minute show what happens "
                "between scrapes.",
                "Near the crossing: drain the server or lower its memory utilization "
                "(`plimsoll admin`), then find in the ledger who took the headroom.",
            ),
            paints={
                "headroom$": Paint("green"),
                "lowest headroom": Paint("green", dashed=True),
                "demand of": Paint("red"),
                "highest demand": Paint("red", dashed=True),
            },
        ),
        lines(
            "Predicted time to the end",
            Query(lowest(gauge(memory.DEVICE_EXHAUSTION), POD), "{{pod}} device"),
            Query(lowest(gauge(memory.KV_EXHAUSTION), POD), "{{pod}} KV pool"),
            unit=Unit.SECONDS,
            note=Note(
                "Forecast from the slope of the last seconds, made in the engine and never above "
                "a day, which means: not in sight.",
                "A device line that falls straight is a leak or a ramp of traffic: see the "
                "ledger. A KV line alone means preemptions.",
            ),
            limits=common.TIME_LEFT_SECONDS,
        ),
        lines(
            "Headroom in 30 minutes",
            Query(_predicted_headroom(), "{{pod}} in 30 min"),
            Query(lowest(gauge(memory.HEADROOM), POD), "{{pod}} now"),
            unit=Unit.BYTES,
            note=Note(
                "Headroom, and where the trend of the last 15 minutes takes it: for slow leaks "
                "that the engine's forecast of seconds does not see.",
                "At 0 with steady traffic: memory leaks. Plan a restart and keep the flight "
                "record.",
            ),
            paints={"in 30": Paint("red", dashed=True), "now": Paint("green")},
        ),
        lines(
            "Fragmentation",
            Query(
                share_or_zero(
                    total(gauge(memory.ALLOCATOR_INACTIVE), POD),
                    total(gauge(memory.ALLOCATOR_RESERVED), POD),
                ),
                "{{pod}}",
            ),
            unit=Unit.SHARE,
            note=Note(
                "Of what the allocator has reserved, the share in split blocks that nothing uses "
                "and that cannot be given back.",
                "Above 15 % with little free: restart at the next quiet time; try expandable "
                "segments.",
            ),
            limits=Limits("green", ((0.1, "orange"), (0.15, "red"))),
        ),
        events(
            "Allocations that failed",
            Query(total(increase(memory.ALLOCATOR_RETRIES), POD), "{{pod}} retried"),
            Query(total(increase(memory.ALLOCATOR_OOMS), POD), "{{pod}} failed"),
            note=Note(
                "A retry is an out-of-memory error that was just survived by giving back all that "
                "the allocator kept; a failure is one that was not, and goes to the rungs.",
                "The first retry is the last warning: reduce the load of this server now.",
            ),
        ),
    )


def _predicted_headroom() -> str:
    # A trend over a fixed time, whatever the width of the screen; memory is never below 0.
    trend = f"predict_linear({gauge(memory.HEADROOM)}[15m], 1800)"
    return f"clamp_min({lowest(trend, POD)}, 0)"


def _measures() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Pool goal and ceiling",
            Query(total(gauge(cache.GOAL), POD), "{{pod}} goal"),
            Query(total(gauge(cache.CEILING), POD), "{{pod}} ceiling"),
            Query(total(gauge(cache.CAPACITY), POD), "{{pod}} capacity"),
            unit=Unit.COUNT,
            note=Note(
                "The governor shrinks the pool towards its goal to save the device; the ceiling "
                "is what an operator allows.",
                "A goal that stays low after the pressure is over: look who took the memory.",
            ),
            paints={
                "goal": Paint("yellow", dashed=True),
                "ceiling": Paint("orange"),
                "capacity": Paint("green"),
            },
            axis="blocks",
        ),
        events(
            "Governor and OOM rungs",
            Query(total(increase(memory.GOVERNOR_ACTIONS), ("action",)), "governor: {{action}}"),
            Query(total(increase(memory.OOM_RUNGS), ("rung",)), "OOM rung: {{rung}}"),
            note=Note(
                "What was done before memory ran out, and, when it did, how far down the ladder "
                "the server had to go: retry, shrink, requeue, fail.",
                "Rungs without governor actions before them: demand came faster than it looks; "
                "lower the memory utilization. fail: a request that does not fit alone.",
            ),
        ),
        lines(
            "Step budgets",
            Query(lowest(gauge(memory.STEP_BUDGET), POD), "{{pod}} tokens of a step"),
            Query(lowest(gauge(memory.PREFILL_BUDGET), POD), "{{pod}} prompt tokens of a step"),
            unit=Unit.COUNT,
            note=Note(
                "Most tokens that a step may compute now; the governor lowers them under pressure.",
                "Low for long: throughput pays for memory. Lower the utilization or add replicas.",
            ),
            axis="tokens",
        ),
        lines(
            "Admissions open",
            Query(lowest(gauge(memory.ADMISSIONS_OPEN), POD), "{{pod}}"),
            unit=Unit.COUNT,
            note=Note(
                "1 while waiting sequences may enter the batch, 0 while the governor holds them "
                "back.",
                "0 for minutes: the server protects itself and clients wait; send it less.",
            ),
            full=1,
        ),
        events(
            "Preemptions by reason",
            Query(total(increase(PREEMPTIONS), ("reason",)), "{{reason}}"),
            note=Note(
                "Sequences that lost blocks, by why.",
                "oom and pool_shrunk come from the device; kv_full from the pool, see KV cache.",
            ),
        ),
        lines(
            "Refused and waiting",
            Query(total(common.refusals(), ("reason",)), "refused a second: {{reason}}"),
            Query(common.waiting(), "{{pod}} waiting"),
            unit=Unit.COUNT,
            note=Note(
                "Requests that were turned away, a second, and those that wait for a batch.",
                "Growing queues with closed admissions: memory, not compute, is the limit.",
            ),
            axis="requests",
        ),
    )


def _symptoms() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Inter-token latency p99",
            Query(quantile(0.99, requests.TOKEN_GAP, POD), "{{pod}}"),
            unit=Unit.SECONDS,
            note=Note(
                "Of all gaps between two tokens, 1 in 100 is longer. Preemptions, retries of the "
                "allocator and engine deaths are in it.",
                "A spike at a preemption or rung is its price; one without is compute.",
            ),
            limits=Limits("green", ((0.5, "orange"), (2.5, "red"))),
        ),
        events(
            "Engines and requests lost",
            Query(total(increase(server.RESTARTS), POD), "{{pod}} engine restarts"),
            Query(total(increase(requests.RESUBMITTED), POD), "{{pod}} sequences resubmitted"),
            Query(
                total(increase(requests.FINISHED, outcome=_LOST), ("outcome",)),
                "requests {{outcome}}",
            ),
            note=Note(
                "Engines that died, the sequences that went on in the next one, and the requests "
                "that could not be saved.",
                "device_exhausted: a request that does not fit alone, limit its length. "
                "engine_crashed: the request itself kills engines.",
            ),
        ),
    )


_LOST = ("device_exhausted", "engine_lost", "engine_crashed")


def _trust() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Age of samples",
            Query(f"time() - {lowest(gauge(memory.SAMPLED), POD)}", "{{pod}} memory"),
            Query(f"time() - {lowest(gauge(GPU_SAMPLED), POD)}", "{{pod}} GPU"),
            unit=Unit.SECONDS,
            note=Note(
                "How long ago the engine looked at its memory, and the sampler at the GPU.",
                "Above 30 s this dashboard is blind: the engine hangs, or the driver does.",
            ),
            limits=Limits("green", ((10, "orange"), (30, "red"))),
        ),
        lines(
            "What the driver tells",
            Query(lowest(gauge(NVML_AVAILABLE), POD), "{{pod}} NVML there"),
            Query(lowest(gauge(GPU_PROCESS_KNOWN), _GPU), "{{pod}} GPU {{gpu}} processes known"),
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
            Query(highest(gauge(GPU_UTILIZATION), _GPU), "{{pod}} GPU {{gpu}}"),
            unit=Unit.SHARE,
            note=Note(
                "Share of time in which the GPU ran anything, as nvidia-smi has it.",
                "Low with requests waiting: closed admissions or a front that is late.",
            ),
            full=1,
        ),
        events(
            "Failures of the GPU sampler",
            Query(total(increase(GPU_FAILURES), POD), "{{pod}}"),
            note=Note(
                "Times that NVML could not be asked or answered with an error.",
                "A GPU that fell off the bus answers only errors: see `dmesg` for its XID.",
            ),
        ),
    )
