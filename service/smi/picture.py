"""Views as rich draws them: a frame for each server, in the manner of nvidia-smi.

All is ASCII, and what colours say is said in words or letters too: it reads the same in a pipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from service.smi import words
from service.smi.shapes import Bar, Flow, Part
from service.smi.styles import (
    ALARM,
    BLOCK_STATES,
    OWNERS,
    STATES,
    STRANGE,
    exhaustion_style,
    level_text,
)
from service.smi.view import CountView, GpuView, KvView, MemoryView, ServerView, SilentView

_THIN_HEADROOM = 1.25  # times the demand


def picture(
    servers: Sequence[ServerView | SilentView], at: datetime, version: str
) -> RenderableType:
    """All of a look; `at`: when it was, `version`: of this program."""
    silent = sum(isinstance(each, SilentView) for each in servers)
    noun = "server" if len(servers) == 1 else "servers"
    told = f"{len(servers)} {noun}" + (f", {silent} silent" if silent else "")
    head = _sides(Text(f"plimsoll smi {version}", "bold"), Text(f"{told}  {at:%Y-%m-%d %H:%M:%S}"))
    return Group(
        _frame(head),
        *(_silent(each) if isinstance(each, SilentView) else _server(each) for each in servers),
    )


def _frame(*parts: RenderableType) -> Panel:
    return Panel(Group(*parts), box=box.ASCII, padding=0)


def _sides(left: Text, right: Text) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1), pad_edge=True)
    grid.add_column(ratio=1, overflow="fold", min_width=16)
    grid.add_column(justify="right", overflow="fold")
    grid.add_row(left, right)
    return grid


def _silent(server: SilentView) -> Panel:
    return _frame(
        _sides(Text(server.address, "bold"), Text("NO ANSWER", ALARM)),
        _rows((("", Text(server.error)),)),
    )


def _server(server: ServerView) -> Panel:
    return _frame(
        _head(server),
        Rule(characters="=", style=""),
        _gpus(server.gpus) if server.gpus else _device(server.memory),
        Rule(characters="-", style=""),
        _rows((*_memory(server.memory), *_kv(server.kv))),
        Rule(characters="-", style=""),
        _rows((*_load(server), *_counts(server.counts), _governor(server))),
    )


def _head(server: ServerView) -> Table:
    state = server.state or "state unknown"
    left = Text.assemble((server.address, "bold"), "  ", server.model or "no model")
    left.append(f"  version {server.version or 'unknown'}")
    how = [server.device or "no device yet"]
    how += [f"weights {server.weights_dtype}"] if server.weights_dtype else []
    how += [f"KV {server.kv_dtype}"] if server.kv_dtype else []
    how += [f"attention {server.attention_backend}"] if server.attention_backend else []
    right = Text.assemble(
        (state, STATES.get(state, "")), f", up {words.duration(server.up_seconds)}"
    )
    grid = _sides(left, level_text(server.pressure_level))
    grid.add_row(Text(", ".join(how)), right)
    return grid


def _gpus(gpus: Sequence[GpuView]) -> Table:
    table = Table(
        *("GPU", "used / capacity", "free", "reserved", "this server", "util"),
        box=None,
        expand=True,
        padding=(0, 1, 0, 0),
    )
    for column in table.columns:
        column.justify, column.overflow = "right", "fold"
    for each in gpus:
        table.add_row(
            each.gpu,
            f"{words.size(each.used_bytes)} / {words.size(each.capacity_bytes)}",
            words.size(each.free_bytes),
            words.size(each.reserved_bytes),
            "not told" if each.process_bytes is None else words.size(each.process_bytes),
            words.share(each.utilization_ratio),
        )
    return table


def _device(memory: MemoryView) -> Table:
    if memory.capacity_bytes is None or memory.free_bytes is None:
        return _rows((("device", Text("memory not told yet")),))
    used = words.size(memory.capacity_bytes - memory.free_bytes)
    return _rows(
        (("device", Text(f"{used} / {words.size(memory.capacity_bytes)}, as the server sees it")),)
    )


def _rows(rows: Sequence[tuple[str, RenderableType]]) -> Table:
    grid = Table.grid(expand=True, padding=(0, 1), pad_edge=True)
    grid.add_column(width=9, overflow="fold", style="bold")
    grid.add_column(ratio=1, overflow="fold")
    for label, content in rows:
        grid.add_row(label, content)
    return grid


def _bar(amounts: dict[str, float], known: dict[str, tuple[str, str]]) -> Bar:
    return Bar([Part(*known.get(name, STRANGE), amount) for name, amount in amounts.items()])


def _legend(shown: dict[str, str], known: dict[str, tuple[str, str]]) -> Flow:
    return Flow(
        [
            Text.assemble(known.get(name, STRANGE), f" {name} {amount}")
            for name, amount in shown.items()
        ]
    )


def _memory(memory: MemoryView) -> list[tuple[str, RenderableType]]:
    amounts = dict(memory.owned_bytes)
    if memory.free_bytes is not None:
        amounts["free"] = memory.free_bytes
    rows: list[tuple[str, RenderableType]] = []
    if amounts:
        sizes = {name: words.size(amount) for name, amount in amounts.items() if amount > 0}
        rows.append(("memory", _bar(amounts, OWNERS)))
        rows.append(("", _legend(sizes, OWNERS)))
    if memory.headroom_bytes is None and memory.demand_bytes is None:
        return [*rows, ("headroom", Text("not told yet"))]
    least, most = words.size(memory.headroom_low_bytes), words.size(memory.demand_high_bytes)
    texts = [
        _headroom(memory.headroom_bytes, memory.demand_bytes),
        Text(f"in 60 s least {least}, most {most}"),
        Text.assemble("memory ends: ", _exhaustion(memory.exhaustion_seconds)),
    ]
    rows.append(("headroom", Flow(texts)))
    if memory.is_stale:
        rows.append(("", Text("STALE: memory was not looked at for some seconds", "bold red")))
    return rows


def _headroom(headroom_bytes: float | None, demand_bytes: float | None) -> Text:
    text = f"{words.size(headroom_bytes)}, next step takes {words.size(demand_bytes)}"
    if headroom_bytes is None or demand_bytes is None:
        return Text(text)
    if demand_bytes > headroom_bytes:
        return Text(f"{text}: OUT OF MEMORY NEXT", "bold red")
    is_thin = demand_bytes * _THIN_HEADROOM > headroom_bytes
    return Text(f"{text}: thin", "yellow") if is_thin else Text(text)


def _exhaustion(seconds: float | None) -> tuple[str, str]:
    return words.exhaustion(seconds), exhaustion_style(seconds)


def _kv(kv: KvView) -> list[tuple[str, RenderableType]]:
    if not kv.blocks:
        return [("KV", Text("blocks not told yet"))]
    order = {state: kv.blocks[state] for state in BLOCK_STATES if state in kv.blocks}
    amounts = order | kv.blocks
    counts = {state: words.count(number) for state, number in amounts.items() if number > 0}
    used = f"{words.share(kv.used_ratio)} of {words.count(kv.capacity_blocks)} blocks used"
    texts = [
        Text(used if kv.block_bytes is None else f"{used}, {words.size(kv.block_bytes)} each"),
        Text(f"in 60 s least {words.count(kv.free_low_blocks)} to be had"),
        Text(f"waste {words.count(kv.slack_tokens)} tokens ({words.share(kv.slack_ratio)})"),
        Text.assemble("blocks end: ", _exhaustion(kv.exhaustion_seconds)),
    ]
    return [
        ("KV", _bar(amounts, BLOCK_STATES)),
        ("", _legend(counts, BLOCK_STATES)),
        ("", Flow(texts)),
    ]


def _load(server: ServerView) -> list[tuple[str, RenderableType]]:
    load = server.load
    tokens = load.recent_tokens_per_second
    slow = "" if not load.slow_readers else "bold yellow"
    requests = Text.assemble(
        f"{words.count(load.running_requests)} running, "
        f"{words.count(load.waiting_requests)} waiting, ",
        (f"{words.count(load.slow_readers)} slow readers", slow),
        f"; {words.UNKNOWN if tokens is None else f'{tokens:.1f}'} tokens/s",
    )
    first = (load.recent_first_token_p50_seconds, load.recent_first_token_p99_seconds)
    gap = (load.recent_token_gap_p50_seconds, load.recent_token_gap_p99_seconds)
    speed = Text(
        f"TTFT p50 {words.latency(first[0])} p99 {words.latency(first[1])}, "
        f"ITL p50 {words.latency(gap[0])} p99 {words.latency(gap[1])}"
    )
    prefix = Text(
        f"prefix hits {words.share(load.recent_prefix_hit_ratio)}"
        f" ({words.share(load.prefix_hit_ratio)} since start); "
        f"figures of the last {words.duration(load.window_seconds)}"
    )
    return [("requests", requests), ("latency", speed), ("", prefix)]


def _counts(counts: dict[str, CountView]) -> list[tuple[str, RenderableType]]:
    texts = [_count(name, each) for name, each in counts.items()]
    return [("events", Flow(texts))] if texts else []


def _count(name: str, count: CountView) -> Text:
    text = Text(name.replace("_", " "))
    if count.since_last_look is not None:
        style = "bold red" if count.since_last_look else ""
        text.append(f" +{words.count(count.since_last_look)} of", style)
    text.append(f" {words.count(count.total)}")
    kinds = [f"{kind} {words.count(number)}" for kind, number in count.by_kind.items() if number]
    return text.append(f" ({', '.join(kinds)})") if kinds else text


def _governor(server: ServerView) -> tuple[str, RenderableType]:
    governor = server.governor
    admissions = {True: "open", False: "CLOSED", None: "unknown"}[governor.admissions_open]
    style = "bold red" if governor.admissions_open is False else ""
    step, prompts = governor.step_budget_tokens, governor.prefill_budget_tokens
    goal, ceiling = governor.pool_goal_blocks, governor.pool_ceiling_blocks
    texts = [
        Text(f"step of {words.count(step)} tokens, {words.count(prompts)} for prompts"),
        Text.assemble("admissions ", (admissions, style)),
        Text(f"pool {words.count(goal)} of {words.count(ceiling)} blocks"),
    ]
    return "governor", Flow(texts)
