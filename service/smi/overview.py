"""A line for each server, for more of them than frames fit a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from service.smi import words
from service.smi.styles import exhaustion_style, level_text
from service.smi.view import ServerView, SilentView

_COLUMNS = (
    *("server", "level", "run/wait", "tokens/s"),
    *("KV used", "KV ends", "headroom", "mem ends"),
)


def overview(servers: Sequence[ServerView | SilentView]) -> Table:
    """What of a server tells whether to look at it alone."""
    table = Table(box=box.ASCII, expand=True, padding=0)
    for name in _COLUMNS:
        left = name in _COLUMNS[:2]
        table.add_column(
            name, justify="left" if left else "right", overflow="fold", no_wrap=name == "server"
        )
    for server in servers:
        if isinstance(server, SilentView):
            table.add_row(server.address, Text("NO ANSWER", "bold white on red"))
        else:
            table.add_row(*_row(server))
    return table


def _row(server: ServerView) -> tuple[str | Text, ...]:
    load, kv, memory = server.load, server.kv, server.memory
    return (
        server.address,
        level_text(server.pressure_level),
        f"{words.count(load.running_requests)}/{words.count(load.waiting_requests)}",
        words.count(load.recent_tokens_per_second),
        words.share(kv.used_ratio),
        _end(kv.exhaustion_seconds),
        words.size(memory.headroom_bytes),
        _end(memory.exhaustion_seconds),
    )


def _end(seconds: float | None) -> Text:
    is_far = seconds is not None and seconds >= words.FOREVER_SECONDS
    text = ">1 day" if is_far else words.duration(seconds)
    return Text(text, exhaustion_style(seconds))
