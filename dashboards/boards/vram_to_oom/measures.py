"""What is done against the end of memory, and what clients notice of it."""

from __future__ import annotations

from dashboards.boards import quantities
from dashboards.boards.panels import (
    Limits,
    Note,
    Paint,
    PanelBuilder,
    Unit,
    events,
    lines,
)
from dashboards.boards.queries import (
    SERVER,
    Query,
    gauge,
    increase,
    lowest,
    named,
    quantile,
    rate,
    total,
)
from service.telemetry.catalog import cache, memory, requests, server


def panels() -> tuple[PanelBuilder, ...]:
    """Panels of the section."""
    return (
        lines(
            "Pool goal and ceiling",
            Query(total(gauge(cache.GOAL), SERVER), named("goal")),
            Query(total(gauge(cache.CEILING), SERVER), named("ceiling")),
            Query(total(gauge(cache.CAPACITY), SERVER), named("capacity")),
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
            Query(lowest(gauge(memory.STEP_BUDGET), SERVER), named("tokens of a step")),
            Query(lowest(gauge(memory.PREFILL_BUDGET), SERVER), named("prompt tokens of a step")),
            unit=Unit.COUNT,
            note=Note(
                "Most tokens that a step may compute now; the governor lowers them under pressure.",
                "Low for long: throughput pays for memory. Lower the utilization or add replicas.",
            ),
            axis="tokens",
        ),
        lines(
            "Admissions open",
            Query(lowest(gauge(memory.ADMISSIONS_OPEN), SERVER), named()),
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
            Query(total(increase(cache.PREEMPTIONS), ("reason",)), "{{reason}}"),
            note=Note(
                "Sequences that lost blocks, by why.",
                "oom and pool_shrunk come from the device; kv_full from the pool, see KV cache.",
            ),
        ),
        lines(
            "Refused and waiting",
            Query(total(rate(requests.REFUSED), ("reason",)), "refused a second: {{reason}}"),
            Query(quantities.waiting(), named("waiting")),
            unit=Unit.COUNT,
            note=Note(
                "Requests that were turned away, a second, and those that wait for a batch.",
                "Growing queues with closed admissions: memory, not compute, is the limit.",
            ),
            axis="requests",
        ),
    )


def symptoms() -> tuple[PanelBuilder, ...]:
    """Panels of the section."""
    return (
        lines(
            "Inter-token latency p99",
            Query(quantile(0.99, requests.TOKEN_GAP, SERVER), named()),
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
            Query(total(increase(server.RESTARTS), SERVER), named("engine restarts")),
            Query(total(increase(requests.RESUBMITTED), SERVER), named("sequences resubmitted")),
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
