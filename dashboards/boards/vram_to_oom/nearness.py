"""How near the end memory is, and the precursors of it."""

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
    highest,
    increase,
    least_of,
    lowest,
    named,
    share_or_zero,
    total,
)
from service.telemetry.catalog import memory


def panels() -> tuple[PanelBuilder, ...]:
    """Panels of the section."""
    return (
        lines(
            "Headroom against demand",
            Query(lowest(gauge(memory.HEADROOM), SERVER), named("headroom")),
            Query(lowest(gauge(memory.HEADROOM_LOW), SERVER), named("lowest headroom of 60 s")),
            Query(highest(gauge(memory.DEMAND), SERVER), named("demand of the next step")),
            Query(highest(gauge(memory.DEMAND_HIGH), SERVER), named("highest demand of 60 s")),
            unit=Unit.BYTES,
            height=10,
            width=24,
            note=Note(
                "What a step can get, and what the largest next step takes. Where the lines cross "
                "the step finds no memory. The extremes of the last minute show what happens "
                "between scrapes.",
                "Near the crossing: drain the server or lower its memory utilization "
                "(`plimsoll memory`), then find in the ledger who took the headroom.",
            ),
            paints={
                "headroom": Paint("green"),
                "lowest headroom of 60 s": Paint("green", dashed=True),
                "demand of the next step": Paint("red"),
                "highest demand of 60 s": Paint("red", dashed=True),
            },
        ),
        lines(
            "Predicted time to the end",
            Query(quantities.drawn_time_left(memory.DEVICE_EXHAUSTION), named("device")),
            Query(quantities.drawn_time_left(memory.KV_EXHAUSTION), named("KV pool")),
            unit=Unit.SECONDS,
            note=Note(
                "Forecast from the slope of the last seconds, made in the engine. An hour or more "
                "lies at the top.",
                "A device line that falls straight is a leak or a ramp of traffic: see the "
                "ledger. A KV line alone means preemptions.",
            ),
            limits=quantities.TIME_LEFT_SECONDS,
        ),
        lines(
            "Headroom in 30 minutes",
            Query(_predicted_headroom(), named("in 30 min")),
            Query(lowest(gauge(memory.HEADROOM), SERVER), named("now")),
            unit=Unit.BYTES,
            note=Note(
                "Headroom, and where the trend of the last 15 minutes takes it: for slow leaks "
                "that the engine's forecast of seconds does not see.",
                "At 0 with steady traffic: memory leaks. Plan a restart and keep the flight "
                "record.",
            ),
            paints={"in 30 min": Paint("red", dashed=True), "now": Paint("green")},
        ),
        lines(
            "Fragmentation",
            Query(
                share_or_zero(
                    total(gauge(memory.ALLOCATOR_INACTIVE), SERVER),
                    total(gauge(memory.ALLOCATOR_RESERVED), SERVER),
                ),
                named(),
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
            Query(total(increase(memory.ALLOCATOR_RETRIES), SERVER), named("retried")),
            Query(total(increase(memory.ALLOCATOR_OOMS), SERVER), named("failed")),
            note=Note(
                "A retry is an out-of-memory error that was just survived by giving back all that "
                "the allocator kept; a failure is one that was not, and goes to the rungs.",
                "The first retry is the last warning: reduce the load of this server now.",
            ),
        ),
    )


def _predicted_headroom() -> str:
    # A trend over a fixed time, whatever the width of the screen. It knows neither that memory
    # is never below 0, nor that it is never above what there is, nor that an engine is gone.
    headroom = gauge(memory.HEADROOM)
    trend = f"(predict_linear({headroom}[15m], 1800) and {headroom})"
    return f"clamp_min({least_of((trend, gauge(memory.CAPACITY)), SERVER)}, 0)"
