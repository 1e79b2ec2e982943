"""The summary of a run as a table for people."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table

from service.bench.record import Outcome
from service.bench.stats import Distribution
from service.bench.summary import Goodput, Summary


def as_table(summary: Summary) -> RenderableType:
    """Two tables: latencies, then everything else."""
    return Group(_latencies(summary), _figures(summary))


def _latencies(summary: Summary) -> Table:
    table = Table(title="latency, ms", title_justify="left", box=None, pad_edge=False)
    table.add_column("")
    for name in ("p50", "p90", "p99", "mean", "max"):
        table.add_column(name, justify="right")
    rows = (
        ("time to first token (TTFT)", summary.ttft),
        ("between tokens (ITL)", summary.itl),
        ("whole request", summary.e2e),
    )
    for name, values in rows:
        table.add_row(name, *_milliseconds(values))
    return table


def _milliseconds(values: Distribution | None) -> list[str]:
    if values is None:
        return ["-"] * 5
    shown = (values.p50, values.p90, values.p99, values.mean, values.maximum)
    return [f"{value * 1e3:.1f}" for value in shown]


def _figures(summary: Summary) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    table.add_row("", "")
    outcomes = (f"{summary.outcomes[kind]} {kind}" for kind in Outcome if summary.outcomes[kind])
    table.add_row("requests", ", ".join(outcomes) or "none")
    for reason, count in summary.reasons.items():
        table.add_row("", f"{count} {reason}")
    table.add_row("duration", f"{summary.duration_seconds:.1f} s")
    table.add_row("requests ok", f"{summary.requests_per_second:.2f} /s")
    table.add_row("output tokens", f"{summary.output_tokens_per_second:.1f} /s")
    table.add_row("prompt + output tokens", f"{summary.total_tokens_per_second:.1f} /s")
    if summary.prefix_hit_rate is not None:
        table.add_row(
            "prefix hit rate",
            f"{summary.prefix_hit_rate:.1%} of {summary.prompt_tokens} prompt tokens",
        )
    if summary.goodput is not None:
        table.add_row("goodput", _goodput(summary.goodput))
    return table


def _goodput(goodput: Goodput) -> str:
    level = goodput.service_level
    limits = [
        f"{name} ≤ {limit * 1e3:g} ms"
        for name, limit in (("TTFT", level.ttft_seconds), ("mean ITL", level.tpot_seconds))
        if limit is not None
    ]
    return (
        f"{goodput.requests_per_second:.2f} /s, {goodput.share:.1%} of the requests:"
        f" {', '.join(limits)}"
    )
