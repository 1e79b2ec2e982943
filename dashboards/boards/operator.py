"""What an operator, a human or a controller, acts on, and what servers were told to do."""

from __future__ import annotations

from dashboards.boards import quantities, states, uids
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
from dashboards.boards.queries import (
    SERVER,
    Query,
    code_of_state,
    gauge,
    highest,
    increase,
    named,
    rate,
    share_or_zero,
    total,
)
from service.telemetry.catalog import admin, cache, memory, requests, server


def build() -> Board:
    """The dashboard."""
    return board(
        uids.OPERATOR,
        "Operator",
        "Replicas, what calls for more or fewer, and what was ordered, as the servers see it.",
        (
            Section("Replicas", _replicas()),
            Section("What calls for action", _causes()),
            Section("What was done", _actions()),
        ),
        all_events(),
        ("operator",),
    )


def _replicas() -> tuple[PanelBuilder, ...]:
    return (
        *(
            value(
                f"Servers {state}",
                Query(total(gauge(server.STATE, state=state)), state),
                unit=Unit.COUNT,
                note=Note(means, act),
                limits=limits,
                width=8,
            )
            for state, means, act, limits in (
                (
                    "ready",
                    "Servers that take requests.",
                    "Compare with the replicas that were ordered.",
                    Limits("red", ((1, "green"),)),
                ),
                (
                    "starting",
                    "Servers that load their model.",
                    "Longer than a load usually takes: see the log of the server.",
                    Limits("green", ((1, "blue"),)),
                ),
                (
                    "draining",
                    "Servers that finish what they have and take nothing new.",
                    "They end by themselves; one that stays has a request that does not end.",
                    Limits("green", ((1, "yellow"),)),
                ),
            )
        ),
        timeline(
            "State of each server",
            Query(code_of_state(server.STATE, "state"), named()),
            names=states.SERVER,
            note=Note(
                "What each server does. One that gives its engine up is failed for a few seconds "
                "at most and then ends with status 1: its line ends, often without failed.",
                "A server that alternates between restarting and ready is in a crash loop: drain "
                "it and read its flight records. Where a line has ended, read the newest one.",
            ),
        ),
        lines(
            "Servers by state",
            Query(total(gauge(server.STATE), ("state",)), "{{state}}"),
            unit=Unit.COUNT,
            note=Note(
                "Number of servers in each state.",
                "Ready ones should follow the replicas that were ordered within a load time.",
            ),
            stacked=True,
            axis="servers",
        ),
        events(
            "Restarts of engines",
            Query(total(increase(server.RESTARTS), SERVER), named()),
            note=Note(
                "Engines that died and were replaced within their server.",
                "More than two in half an hour: find the cause before it scales.",
            ),
        ),
    )


def _causes() -> tuple[PanelBuilder, ...]:
    ready = "clamp_min(" + total(gauge(server.STATE, state="ready")) + ", 1)"
    queued = total(gauge(requests.LIVE, state="waiting"))
    return (
        lines(
            "Waiting requests by replica",
            Query(quantities.waiting(), named()),
            Query(f"{queued} / {ready}", "mean of ready ones"),
            unit=Unit.COUNT,
            note=Note(
                "Requests that were never in a batch, by server and per ready server.",
                "A mean that grows for minutes calls for replicas; one server far above it for "
                "another way of spreading requests.",
            ),
            axis="requests",
            paints={"mean of ready ones": Paint("red", dashed=True)},
        ),
        lines(
            "Pressure by replica",
            Query(highest(gauge(memory.PRESSURE), SERVER), named()),
            unit=Unit.COUNT,
            note=Note(
                "1 normal, 2 elevated, 3 high, 4 critical.",
                "One server high: drain it or lower its utilization. All of them: add replicas.",
            ),
            full=4,
            limits=Limits("green", ((2, "yellow"), (3, "orange"), (4, "red"))),
        ),
        lines(
            "Retry hint",
            Query(highest(gauge(requests.RETRY_HINT), SERVER), named()),
            unit=Unit.SECONDS,
            note=Note(
                "After how long a client that is refused now is told to come back.",
                "Longer than clients are willing to wait: add replicas.",
            ),
        ),
        lines(
            "Requests refused by replica",
            Query(total(rate(requests.REFUSED), SERVER), named()),
            Query(_refused_share(), "share of all"),
            unit=Unit.REQUESTS_PER_SECOND,
            note=Note(
                "Requests a second that were turned away, by server, and their share of all that "
                "came.",
                "A share above 1 % is traffic without capacity.",
            ),
            paints={"share of all": Paint("red", dashed=True)},
        ),
    )


def _refused_share() -> str:
    refused = quantities.per_second(requests.REFUSED)
    return share_or_zero(refused, f"({refused} + {quantities.per_second(requests.ADMITTED)})")


def _actions() -> tuple[PanelBuilder, ...]:
    return (
        events(
            "Admin actions",
            Query(total(increase(admin.ACTIONS), ("action",)), "{{action}}"),
            note=Note(
                "What was ordered through the admin API, by a human or a controller.",
                "An action that nobody remembers: see the log of the server for who asked.",
            ),
        ),
        lines(
            "Memory utilization in force",
            Query(highest(gauge(admin.MEMORY_UTILIZATION), SERVER), named()),
            unit=Unit.SHARE,
            note=Note(
                "Share of the most blocks that the KV pool can have that it has now: what was "
                "ordered, less what the governor took.",
                "Lower it (`plimsoll memory`) to give the device room; the pool follows without a "
                "restart. Below what was ordered: the governor took the rest, see VRAM to OOM.",
            ),
            full=1,
        ),
        lines(
            "Goal against ceiling",
            Query(total(gauge(cache.GOAL), SERVER), named("goal")),
            Query(total(gauge(cache.CEILING), SERVER), named("ceiling")),
            unit=Unit.COUNT,
            note=Note(
                "Blocks that the governor aims at, and that the operator allows.",
                "A goal below the ceiling for long: the order is more than the device has; lower "
                "the utilization.",
            ),
            paints={"goal": Paint("yellow", dashed=True), "ceiling": Paint("orange")},
            axis="blocks",
        ),
        events(
            "Governor actions",
            Query(total(increase(memory.GOVERNOR_ACTIONS), ("action",)), "{{action}}"),
            note=Note(
                "What the governor did by itself before memory ran out.",
                "Shrinking and growing in turn: the utilization is at the edge; lower it a little.",
            ),
        ),
    )
