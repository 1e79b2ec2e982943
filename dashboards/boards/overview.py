"""Is it well, and if not, which dashboard tells why."""

from __future__ import annotations

from dashboards.boards import quantities, states, uids
from dashboards.boards.annotations import usual_events
from dashboards.boards.board import Board, Section, board
from dashboards.boards.panels import (
    ANY_IS_BAD,
    Limits,
    Note,
    PanelBuilder,
    Unit,
    bars,
    events,
    lines,
    timeline,
    value,
)
from dashboards.boards.queries import (
    SERVER,
    Query,
    gauge,
    highest,
    increase,
    lowest,
    named,
    quantile,
    rate,
    share_or_zero,
    total,
)
from service.telemetry.catalog import memory, requests, server


def build() -> Board:
    """The dashboard."""
    return board(
        uids.OVERVIEW,
        "Overview",
        "State, traffic and memory of the servers at a glance.",
        (
            Section("Now", _now()),
            Section("Traffic", _traffic()),
            Section("Memory", _memory()),
            Section("The servers themselves", _servers()),
        ),
        usual_events(),
    )


def _now() -> tuple[PanelBuilder, ...]:
    failed = total(rate(requests.FINISHED, outcome=quantities.FAILURES))
    every = total(rate(requests.FINISHED))
    return (
        value(
            "Servers ready",
            Query(total(gauge(server.STATE, state="ready")), "ready"),
            unit=Unit.COUNT,
            note=Note(
                "Servers that take requests.",
                "Fewer than replicas: see the states of servers below, and the Operator dashboard.",
            ),
            limits=Limits("red", ((1, "green"),)),
        ),
        value(
            "Pressure",
            Query(highest(gauge(memory.PRESSURE)), "pressure"),
            unit=Unit.COUNT,
            note=Note(
                "How near the end of memory or queue the worst server is.",
                "From high on, open VRAM to OOM for that server; add replicas or send it less.",
            ),
            names=states.PRESSURE,
        ),
        value(
            "Requests that fail",
            Query(share_or_zero(failed, every), "failed"),
            unit=Unit.SHARE,
            note=Note(
                "Of the requests that end, those that end badly through no fault of the client. "
                "0 when none end.",
                "See below by which outcome. device_exhausted: VRAM to OOM. deadline_*: Latency. "
                "queue_full: more replicas.",
            ),
            limits=Limits("green", ((0.01, "orange"), (0.05, "red"))),
        ),
        value(
            "Alerts firing",
            Query(_firing_alerts(), "firing"),
            unit=Unit.COUNT,
            note=Note(
                "Alerts of these servers that Prometheus has firing. Alerts that Grafana itself "
                "evaluates are not in it.",
                "Open the alert; each links to its runbook.",
            ),
            limits=ANY_IS_BAD,
        ),
        value(
            "KV pool in use",
            Query(highest(quantities.kv_usage()), "in use"),
            unit=Unit.SHARE,
            note=Note(
                "Blocks of the fullest pool that nobody else can have. Full means preemption, "
                "not an out-of-memory error.",
                "Above 90 %: see KV cache for preemptions; add replicas or raise the utilization.",
            ),
            limits=quantities.FULL_POOL,
        ),
        value(
            "Memory runs out in",
            Query(lowest(quantities.time_left()), "time left"),
            unit=Unit.SECONDS,
            note=Note(
                "Forecast of the server that comes first to the end of its KV pool or device.",
                "Below 5 minutes: VRAM to OOM tells which of the two, and how it grows.",
            ),
            limits=quantities.TIME_LEFT_SECONDS,
            names=quantities.TIME_LEFT_NAMES,
        ),
        value(
            "Waiting requests",
            Query(total(gauge(requests.LIVE, state="waiting")), "waiting"),
            unit=Unit.COUNT,
            note=Note(
                "Requests that were never in a batch.",
                "If it grows for minutes there is more traffic than capacity: add replicas.",
            ),
        ),
        value(
            "Output",
            Query(quantities.per_second(requests.OUTPUT_TOKENS), "output"),
            unit=Unit.TOKENS_PER_SECOND,
            note=Note(
                "Tokens a second for clients, of all servers.",
                "A drop while requests run: see Latency, and preemptions in KV cache.",
            ),
        ),
    )


def _traffic() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Requests that end",
            Query(quantities.per_second(requests.FINISHED, "outcome"), "{{outcome}}"),
            unit=Unit.REQUESTS_PER_SECOND,
            note=Note(
                "Requests a second that end, by how. Of a healthy server all are completed, but "
                "for clients that cancel.",
                "Look the outcome up: device_exhausted and engine_* are trouble of the server, "
                "slow_reader and cancelled of clients.",
            ),
            stacked=True,
        ),
        lines(
            "Requests refused",
            Query(quantities.per_second(requests.REFUSED, "reason"), "{{reason}}"),
            unit=Unit.REQUESTS_PER_SECOND,
            note=Note(
                "Valid requests a second that were turned away at once, by reason.",
                "queue_full and deadline_unreachable: add replicas, or have clients back off as "
                "they are told. not_ready: see the states of servers.",
            ),
            stacked=True,
        ),
        lines(
            "Tokens",
            Query(quantities.per_second(requests.PROMPT_TOKENS), "prompt"),
            Query(quantities.per_second(requests.OUTPUT_TOKENS), "output"),
            Query(quantities.per_second(requests.RECOMPUTED_TOKENS), "computed again"),
            unit=Unit.TOKENS_PER_SECOND,
            note=Note(
                "Tokens a second: of prompts, for clients, and computed once more after "
                "preemptions and engine deaths.",
                "Much computed again is lost work: the pool is too small for this traffic.",
            ),
        ),
        lines(
            "Live requests",
            Query(total(gauge(requests.LIVE), ("state",)), "{{state}}"),
            unit=Unit.COUNT,
            note=Note(
                "Requests that are not over: in a batch or once in it, and never in one.",
                "Waiting ones beside a batch that is not full: see admissions in VRAM to OOM.",
            ),
            stacked=True,
            axis="requests",
        ),
    )


def _memory() -> tuple[PanelBuilder, ...]:
    return (
        bars(
            "Headroom",
            Query(quantities.headroom(), named()),
            unit=Unit.SHARE,
            note=Note(
                "Share of the device's memory that a step can still get, by server.",
                "Red is near an out-of-memory error: open VRAM to OOM for that server.",
            ),
            limits=quantities.LITTLE_LEFT,
            full=1,
        ),
        bars(
            "KV pools",
            Query(quantities.kv_usage(), named()),
            unit=Unit.SHARE,
            note=Note(
                "Share of each server's KV pool that nobody else can have.",
                "One full pool among empty ones: requests are not spread. All full: add replicas.",
            ),
            limits=quantities.FULL_POOL,
            full=1,
        ),
        timeline(
            "Pressure over time",
            Query(highest(gauge(memory.PRESSURE), SERVER), named()),
            names=states.PRESSURE,
            note=Note(
                "How near the end of memory or queue each server was.",
                "Look for what precedes each rise: traffic, admin actions, restarts.",
            ),
        ),
    )


def _servers() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Engine busy",
            Query(total(rate(server.BUSY), SERVER), named()),
            unit=Unit.SHARE,
            note=Note(
                "Share of time that the engine computes steps.",
                "Near 100 % with requests waiting: add replicas. Low with requests waiting: "
                "admissions are closed, see VRAM to OOM.",
            ),
        ),
        lines(
            "Event loop lag",
            Query(quantile(0.99, server.LOOP_LAG, SERVER), named()),
            unit=Unit.SECONDS,
            note=Note(
                "p99 of how late timers of the server process are.",
                "Above 100 ms the front, not the engine, delays tokens: give it more CPU.",
            ),
            limits=Limits("green", ((0.1, "orange"), (0.5, "red"))),
        ),
        events(
            "Engine restarts",
            Query(total(increase(server.RESTARTS), SERVER), named()),
            note=Note(
                "Engines that died and were replaced. Their requests went on in the next one.",
                "`plimsoll flight list` shows the record of each; several in half an hour are a "
                "crash loop.",
            ),
        ),
        events(
            "Lost flight records",
            Query(total(increase(server.FLIGHT_LOST), SERVER), named()),
            note=Note(
                "Evidence of trouble that could not be written. Serving goes on without it.",
                "The disk of the flight folder is full or may not be written.",
            ),
        ),
        lines(
            "Evidence left out",
            Query(total(rate(server.SPANS, result="dropped")), "spans dropped"),
            Query(total(rate(server.SPANS, result="failed")), "spans not taken"),
            Query(total(rate(server.LOG_SUPPRESSED)), "log records"),
            unit=Unit.COUNT,
            width=24,
            note=Note(
                "A second: spans of traces that too many others kept out or the collector did not "
                "take, and log records of which there were too many of a kind.",
                "Look after the collector, or lower trace_ratio; what repeats in the log is a "
                "fault to find.",
            ),
        ),
    )


def _firing_alerts() -> str:
    # ALERTS is Prometheus' own metric; it has no series while nothing is firing.
    scope = 'namespace=~"$namespace",model=~"$model|",pod=~"$pod|"'
    return f'sum(ALERTS{{alertstate="firing",alertname=~"Plimsoll.+",{scope}}}) or vector(0)'
