"""Where the time of a request goes."""

from __future__ import annotations

from dashboards.boards import uids
from dashboards.boards.annotations import usual_events
from dashboards.boards.board import Board, Section, board
from dashboards.boards.panels import Limits, Note, PanelBuilder, Unit, distribution, lines, value
from dashboards.boards.queries import (
    SERVER,
    Query,
    buckets,
    gauge,
    highest,
    mean,
    named,
    quantile,
    total,
    within,
)
from service.telemetry.catalog import Metric, requests, server

# Ends of buckets, so that the shares are exact.
_FIRST_TOKEN_GOAL_SECONDS = 1.0
_TOKEN_GAP_GOAL_SECONDS = 0.2


def build() -> Board:
    """The dashboard."""
    return board(
        uids.LATENCY,
        "Latency",
        "From arrival over queue, prefill and decode to the last token.",
        (
            Section("Goals", _goals()),
            Section("What clients notice", _felt()),
            Section("Where the time goes", _phases()),
            Section("What requests are like", _sizes()),
            Section("The server between engine and client", _front()),
        ),
        usual_events(),
        ("latency",),
    )


def _goals() -> tuple[PanelBuilder, ...]:
    return (
        _kept("First token within 1 s", requests.FIRST_TOKEN, _FIRST_TOKEN_GOAL_SECONDS),
        _kept("Next token within 200 ms", requests.TOKEN_GAP, _TOKEN_GAP_GOAL_SECONDS),
        value(
            "Time to first token p99",
            Query(quantile(0.99, requests.FIRST_TOKEN), "p99"),
            unit=Unit.SECONDS,
            note=Note("1 in 100 first tokens takes longer.", "Compare queue and prefill below."),
            limits=Limits("green", ((1, "orange"), (10, "red"))),
            width=6,
        ),
        value(
            "Inter-token latency p99",
            Query(quantile(0.99, requests.TOKEN_GAP), "p99"),
            unit=Unit.SECONDS,
            note=Note(
                "1 in 100 gaps between tokens is longer.",
                "Preemptions and long prefills of others make it; see KV cache.",
            ),
            limits=Limits("green", ((0.5, "orange"), (2.5, "red"))),
            width=6,
        ),
    )


def _kept(title: str, metric: Metric, goal_seconds: float) -> PanelBuilder:
    return value(
        title,
        Query(within(goal_seconds, metric), "in time"),
        unit=Unit.SHARE,
        note=Note(
            "Share that was in time; all, when there was none.",
            "Below 99 %: see below whether queue, prefill or decode takes the time.",
        ),
        limits=Limits("red", ((0.95, "orange"), (0.99, "green"))),
        width=6,
    )


def _quantiles(title: str, metric: Metric, means: str, act: str) -> tuple[PanelBuilder, ...]:
    curves = [Query(quantile(q, metric), f"p{100 * q:.0f}") for q in (0.5, 0.95, 0.99)]
    return (
        lines(
            title,
            *curves,
            Query(mean(metric), "mean"),
            unit=Unit.SECONDS,
            note=Note(means, act),
        ),
    )


def _felt() -> tuple[PanelBuilder, ...]:
    shown = (
        (
            "Time to first token",
            requests.FIRST_TOKEN,
            "From the arrival of a request to its first token.",
            "Compare queue time: if it is most of it, add replicas; if not, prompts are long or "
            "the prefix cache does not help.",
        ),
        (
            "Inter-token latency",
            requests.TOKEN_GAP,
            "Between two tokens of a candidate, preemptions and engine deaths included.",
            "A p99 far above the p50: preemptions or prefills of others between the steps.",
        ),
    )
    return tuple(
        panel
        for title, metric, means, act in shown
        for panel in (
            *_quantiles(title, metric, means, act),
            distribution(
                f"{title}: distribution",
                buckets(metric),
                unit=Unit.SECONDS,
                note=Note(
                    f"{means} By bucket; the marks are single requests with a trace.",
                    "Two clouds are two kinds of requests or servers. Open the trace of a mark in "
                    "the slow one.",
                ),
            ),
        )
    )


def _phases() -> tuple[PanelBuilder, ...]:
    return (
        *_quantiles(
            "Queue time",
            requests.QUEUE,
            "From the arrival of a request to its first batch.",
            "It grows when there is more traffic than capacity, or admissions are closed: see "
            "VRAM to OOM.",
        ),
        *_quantiles(
            "Prefill time",
            requests.PREFILL,
            "From the first batch of a request to its first token.",
            "It grows with the prompt and with a smaller prefill budget.",
        ),
        *_quantiles(
            "Decode time",
            requests.DECODE,
            "From the first token of a completed request to its last.",
            "Divide by the tokens of the output: the same per token, and only outputs are longer.",
        ),
        *_quantiles(
            "Whole request",
            requests.DURATION,
            "From the arrival of a completed request until its client has taken the end.",
            "Above the sum of the phases: clients read slowly.",
        ),
    )


def _sizes() -> tuple[PanelBuilder, ...]:
    return (
        distribution(
            "Prompt tokens",
            buckets(requests.REQUEST_PROMPT_TOKENS),
            unit=Unit.COUNT,
            note=Note(
                "Tokens of the prompts of admitted requests.",
                "Longer prompts explain slower first tokens and higher demand for memory.",
            ),
        ),
        distribution(
            "Output tokens",
            buckets(requests.REQUEST_OUTPUT_TOKENS),
            unit=Unit.COUNT,
            note=Note(
                "Tokens of the outputs of completed requests.",
                "Longer outputs hold blocks longer: see KV cache.",
            ),
        ),
    )


def _front() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Step time",
            Query(highest(gauge(server.STEP_TIME), SERVER), named()),
            unit=Unit.SECONDS,
            note=Note(
                "Moving average of a step of the engine: the least that a token can take.",
                "High: large batches or long prefills; lower the step budget for shorter gaps.",
            ),
            width=8,
        ),
        lines(
            "Event loop lag p99",
            Query(quantile(0.99, server.LOOP_LAG, SERVER), named()),
            unit=Unit.SECONDS,
            note=Note(
                "How late timers of the server process are.",
                "Above 100 ms it is the front that delays tokens: give it more CPU.",
            ),
            limits=Limits("green", ((0.1, "orange"), (0.5, "red"))),
            width=8,
        ),
        lines(
            "Slow readers",
            Query(total(gauge(requests.SLOW_STREAMS), SERVER), named()),
            unit=Unit.COUNT,
            note=Note(
                "Live requests whose output waits for the client to read it.",
                "If it stays, those clients or the network between are the limit; they are ended "
                "when their buffer is full.",
            ),
            width=8,
            axis="requests",
        ),
    )
