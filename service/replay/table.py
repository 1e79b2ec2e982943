"""A replay as a table for people."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from kvcache.replay import CacheFigures, ReplayReport, Spread


def cache_table(cache: CacheFigures) -> RenderableType:
    """The figures of the cache alone."""
    table = _table()
    _add_cache(table, cache)
    return table


def report_table(report: ReplayReport) -> RenderableType:
    """All figures of a replay."""
    table = _table()
    requests = report.requests
    table.add_row("requests finished", f"{requests.finished}")
    if requests.refused:
        table.add_row("  refused", f"{requests.refused} larger than the pool")
    if requests.outgrown:
        table.add_row("  outgrown", f"{requests.outgrown} grew larger than the pool")
    table.add_row("simulated time", f"{report.duration_seconds:.1f} s")
    tokens = f"{requests.prompt_tokens} prompt, {requests.output_tokens} output"
    table.add_row("tokens", tokens)
    _add_cache(table, report.cache)
    table.add_row("internal waste", f"{report.waste:.2%} of the held slots")
    table.add_row("preemptions", f"{requests.preemptions}")
    table.add_row("recomputed tokens", f"{requests.recomputed_tokens}")
    table.add_row(
        "at the load line",
        f"{report.load_line_seconds:.1f} s, {report.load_line_share:.1%} of the time",
    )
    table.add_row("longest queue", f"{report.longest_queue} requests")
    table.add_row("queueing", _seconds(report.queue_seconds))
    table.add_row("time to first token", _seconds(report.ttft_seconds))
    return table


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    return table


def _add_cache(table: Table, cache: CacheFigures) -> None:
    table.add_row("hit ratio", f"{cache.hit_ratio:.2%} of {cache.lookup_tokens} prompt tokens")
    table.add_row("evicted blocks", f"{cache.evicted_blocks}")
    table.add_row("regretted tokens", f"{cache.regretted_tokens} evicted, then asked for")
    table.add_row("de-duplicated blocks", f"{cache.deduplicated_blocks}")


def _seconds(spread: Spread) -> str:
    return (
        f"mean {spread.mean:.2f}, p50 {spread.p50:.2f},"
        f" p99 {spread.p99:.2f}, longest {spread.maximum:.2f} s"
    )
