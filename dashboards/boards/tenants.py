"""Who uses the service, and whether each gets a fair part of it."""

from __future__ import annotations

from dashboards.boards import quantities, uids
from dashboards.boards.annotations import usual_events
from dashboards.boards.board import Board, Section, board
from dashboards.boards.panels import Limits, Note, PanelBuilder, Unit, lines
from dashboards.boards.queries import Query, gauge, quantile, share_or_zero, total
from service.telemetry.catalog import Metric, cache, tenants

_TENANT = ("tenant",)
_LEGEND = "{{tenant}}"


def build() -> Board:
    """The dashboard."""
    return board(
        uids.TENANTS,
        "Tenants",
        "Traffic, memory and latency by tenant. Tenants beyond the first metrics_tenants are "
        "counted as other.",
        (
            Section("Traffic", _traffic()),
            Section("Fairness", _fairness()),
            Section("Memory and latency", _memory()),
        ),
        usual_events(),
        ("tenants",),
    )


def _rate(metric: Metric) -> str:
    return quantities.per_second(metric, *_TENANT)


def _traffic() -> tuple[PanelBuilder, ...]:
    return (
        lines(
            "Requests admitted",
            Query(_rate(tenants.ADMITTED), _LEGEND),
            unit=Unit.REQUESTS_PER_SECOND,
            note=Note(
                "Requests a second of each tenant that became live.",
                "One tenant that rises while others wait: lower its weight or its limits.",
            ),
            stacked=True,
        ),
        lines(
            "Requests finished",
            Query(_rate(tenants.FINISHED), _LEGEND),
            unit=Unit.REQUESTS_PER_SECOND,
            note=Note(
                "Requests a second of each tenant that are over, however they ended.",
                "Below those admitted for long: requests of this tenant pile up.",
            ),
            stacked=True,
        ),
        lines(
            "Prompt tokens",
            Query(_rate(tenants.PROMPT_TOKENS), _LEGEND),
            unit=Unit.TOKENS_PER_SECOND,
            note=Note(
                "Tokens a second of the prompts of each tenant.",
                "Long prompts cost prefill of all: see Latency.",
            ),
            stacked=True,
        ),
        lines(
            "Output tokens",
            Query(_rate(tenants.OUTPUT_TOKENS), _LEGEND),
            unit=Unit.TOKENS_PER_SECOND,
            note=Note(
                "Tokens a second for the clients of each tenant.",
                "Near 0 with requests admitted: they wait or are preempted.",
            ),
            stacked=True,
        ),
    )


def _fairness() -> tuple[PanelBuilder, ...]:
    refused = _rate(tenants.REFUSED)
    return (
        lines(
            "Part of the output",
            Query(_part(_rate(tenants.OUTPUT_TOKENS)), _LEGEND),
            unit=Unit.SHARE,
            note=Note(
                "Of all tokens for clients, the part of each tenant.",
                "With all of them busy the parts follow the weights; else the weights are wrong "
                "or a tenant sends too little.",
            ),
            full=1,
            stacked=True,
        ),
        lines(
            "Requests refused",
            Query(share_or_zero(refused, f"({refused} + {_rate(tenants.ADMITTED)})"), _LEGEND),
            unit=Unit.SHARE,
            note=Note(
                "Of the requests of each tenant, the share that was turned away.",
                "One tenant alone: it sends more than its part. All: add replicas.",
            ),
            limits=Limits("green", ((0.01, "orange"), (0.1, "red"))),
            full=1,
        ),
    )


def _part(vector: str) -> str:
    every = f"clamp_min(sum({vector}), 1e-9)"
    return f"{vector} / on() group_left() {every}"


def _memory() -> tuple[PanelBuilder, ...]:
    capacity = total(gauge(cache.CAPACITY))
    held = total(gauge(tenants.KV_BLOCKS), _TENANT)
    return (
        lines(
            "Part of the KV pool",
            Query(f"{held} / on() group_left() {capacity}", _LEGEND),
            unit=Unit.SHARE,
            note=Note(
                "Of all blocks, the part that running sequences of each tenant hold.",
                "One tenant with most of a full pool: limit its share or the length of its "
                "contexts.",
            ),
            full=1,
            stacked=True,
        ),
        lines(
            "Blocks held",
            Query(held, _LEGEND),
            unit=Unit.COUNT,
            note=Note(
                "Blocks that running sequences of each tenant hold. One that two tenants share "
                "counts for both.",
                "Compare with its weight; a tenant with many blocks and little output has long "
                "contexts.",
            ),
            stacked=True,
            axis="blocks",
        ),
        lines(
            "Time to first token p95",
            Query(quantile(0.95, tenants.FIRST_TOKEN, _TENANT), _LEGEND),
            unit=Unit.SECONDS,
            note=Note(
                "1 in 20 first tokens of each tenant takes longer.",
                "One tenant above the others: its prompts are long, or its part of the batch is "
                "used up.",
            ),
            width=24,
        ),
    )
