"""Where a server is: its pressure, its state, and the time that is left."""

from __future__ import annotations

from dashboards.boards import quantities, states
from dashboards.boards.panels import (
    Limits,
    Note,
    PanelBuilder,
    Unit,
    timeline,
    value,
)
from dashboards.boards.queries import (
    SERVER,
    Query,
    code_of_state,
    gauge,
    highest,
    lowest,
    named,
)
from service.telemetry.catalog import memory, server


def panels() -> tuple[PanelBuilder, ...]:
    """Panels of the section."""
    return (
        timeline(
            "Pressure",
            Query(highest(gauge(memory.PRESSURE), SERVER), named()),
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
            Query(code_of_state(server.STATE, "state"), named()),
            names=states.SERVER,
            width=12,
            note=Note(
                "What each server does. restarting: its engine died and is replaced.",
                "restarting after critical pressure is an out-of-memory error that was not "
                "survived: see the flight record with `plimsoll flight show`.",
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
            limits=quantities.TIME_LEFT_SECONDS,
            names=quantities.TIME_LEFT_NAMES,
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
            limits=quantities.TIME_LEFT_SECONDS,
            names=quantities.TIME_LEFT_NAMES,
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
                "`plimsoll flight show` shows the minute before it.",
            ),
            names={0.0: ("never", "green")},
            limits=Limits("orange"),
            width=6,
        ),
    )


def _cover() -> str:
    demand = highest(gauge(memory.DEMAND), SERVER)
    return f"{lowest(gauge(memory.HEADROOM), SERVER)} / clamp_min({demand}, 1)"
