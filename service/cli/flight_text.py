"""Flight records as text for people.

Files may come from anywhere: nothing in them reaches the terminal that is not printable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.flight.folder import Entry
from service.flight.record import EngineFacts, FlightRecord, MemoryLedger
from service.flight.signals import Signals

_SIGNAL_ROWS = 12
_REQUEST_ROWS = 20
_BAR_WIDTH = 40
_MIB = 1024**2


def list_rows(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """The list for programs."""
    return [
        {
            "file": entry.file_name.encode("utf-8", "replace").decode(),
            "kind": entry.headline and entry.headline.kind,
            "time": entry.headline and entry.headline.time,
            "engine_life": entry.headline and entry.headline.engine.life,
            "requests_total": entry.headline and entry.headline.requests_total,
            "cause": entry.headline and entry.headline.cause,
            "problem": entry.problem,
        }
        for entry in entries
    ]


def list_lines(folder: Path, entries: Sequence[Entry]) -> list[str]:
    """The list for people."""
    if not entries:
        return [f"{folder}: there are no flight records"]
    lines = []
    for entry in entries:
        told = f"damaged: {entry.problem}" if entry.name is not None else entry.problem or ""
        if entry.headline is not None:
            told = entry.headline.cause
        lines.append(_plain(f"{entry.file_name}  {told}"))
    return [f"{folder}", *lines]


def show_lines(record: FlightRecord) -> list[str]:
    """One record, from what happened to what was installed."""
    sections = [
        _what(record),
        [] if record.memory is None else _memory(record.memory),
        _signals(record.signals),
        _requests(record),
        _versions(record),
    ]
    return [_plain(line) for line in _joined(section for section in sections if section)]


def _joined(sections: Iterable[list[str]]) -> list[str]:
    lines: list[str] = []
    for section in sections:
        lines += ["", *section] if lines else section
    return lines


def _what(record: FlightRecord) -> list[str]:
    lines = [
        f"{record.kind.value} at {_time(record.time)}",
        f"cause     {record.cause}",
        f"engine    {_engine(record.engine)}; server process {record.server_process_id}",
    ]
    if (incident := record.incident) is not None:
        rung = "" if incident.rung is None else f"rung {incident.rung}, "
        wanted = f"{_mib(incident.wanted_bytes)} wanted, " if incident.wanted_bytes else ""
        lines.append(
            f"incident  {rung}{wanted}step of {incident.step_tokens} tokens, "
            f"{incident.batch_sequences} sequences"
        )
    if record.crashed is not None:
        by_itself = "it may have crashed by itself" if record.crashed else "killed from outside"
        lines.append(f"death     {by_itself}")
    return lines


def _time(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%S}.{time.microsecond // 1000:03} UTC"


def _engine(engine: EngineFacts) -> str:
    parts = [f"number {engine.life}"]
    if engine.ready_seconds is None:
        return f"{parts[0]}, not ready yet"
    if engine.process_id is not None:
        parts.append(f"process {engine.process_id}")
    parts.append(f"ready for {engine.ready_seconds:.1f} s")
    parts += [
        f"{name} {value}"
        for name, value in (
            ("model", engine.model_version),
            ("device", engine.device),
            ("weights", engine.weights_dtype),
            ("KV", engine.kv_dtype),
        )
        if value is not None
    ]
    return ", ".join(parts)


def _memory(memory: MemoryLedger) -> list[str]:
    rows = [*memory.by_owner.items(), ("free", memory.free_bytes)]
    width = max(len(name) for name, _ in rows)
    lines = [
        f"device memory, {_mib(memory.total_bytes)}, {memory.age_seconds:.1f} s before",
        *(
            f"  {name.replace('_', ' '):<{width}} {_mib(size):>13}  "
            + "#" * round(_BAR_WIDTH * size / max(1, memory.total_bytes))
            for name, size in rows
        ),
    ]
    lines.append(
        f"  headroom {_mib(memory.headroom_bytes)}, {_mib(memory.reclaimable_bytes)} of it kept by "
        f"the allocator; the largest step takes {_mib(memory.demand_bytes)}; the host has "
        f"{_mib(memory.host_available_bytes)}"
    )
    return lines


def _signals(signals: Signals) -> list[str]:
    count = len(signals.seconds)
    if not count:
        return ["no signals: no engine had reported"]
    head = ["seconds", "engine", "live", "running", "waiting", "preempted", "KV held"]
    engine, vitals = signals.engine, signals.vitals
    if vitals:
        head += ["level", "headroom MiB", "step MiB", "KV ends s"]
    rows = [head]
    for i in _spread(count, _SIGNAL_ROWS):
        row = [f"{signals.seconds[i]:.1f}", *_at(i, signals.engine_life, signals.live_requests)]
        row += [_cell(engine, name, i) for name in ("running", "waiting", "preempted")]
        row.append(f"{_cell(engine, 'blocks_held', i)}/{_cell(engine, 'blocks_total', i)}")
        if vitals:
            row.append(_level(_cell(vitals, "level", i)))
            row += [_number(_cell(vitals, n, i), _MIB) for n in ("headroom_bytes", "demand_bytes")]
            row.append(_seconds(_cell(vitals, "kv_exhaustion_seconds", i)))
        rows.append(["-" if cell is None else str(cell) for cell in row])
    return [f"the last {-signals.seconds[0]:.0f} s", *_table(rows)]


def _requests(record: FlightRecord) -> list[str]:
    if not record.requests_total:
        return ["requests in flight: none"]
    rows = [["request", "tenant", "prompt", "output", "candidates", "age s", "where"]]
    rows += [
        [
            request.request_id,
            request.tenant or "-",
            str(request.prompt_tokens),
            str(request.output_tokens),
            str(request.candidates),
            f"{request.age_seconds:.1f}",
            request.place.value,
        ]
        for request in record.requests[:_REQUEST_ROWS]
    ]
    lines = [f"requests in flight: {record.requests_total}", *_table(rows, left=2)]
    if record.requests_total > len(rows) - 1:
        lines.append(f"  … and {record.requests_total - len(rows) + 1} more")
    return lines


def _versions(record: FlightRecord) -> list[str]:
    named = (f"{name} {version or 'absent'}" for name, version in record.versions.items())
    return [f"versions  {', '.join(named)}"]


def _spread(count: int, most: int) -> list[int]:
    """At most so many indexes of `count`, evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _cell(columns: dict[str, list[Any]], name: str, index: int) -> Any:
    """None for a column that the server which wrote the record did not have."""
    return _at(index, columns.get(name, []))[0]


def _at(index: int, *columns: list[Any]) -> list[Any]:
    return [column[index] if index < len(column) else None for column in columns]


def _level(value: object) -> str:
    try:
        return PressureLevel(value).name.lower()  # type: ignore[arg-type]
    except ValueError:
        return "-"


def _seconds(value: float | None) -> str:
    return "never" if value == FOREVER_SECONDS else _number(value, 1)


def _number(value: float | None, unit: int) -> str:
    return "-" if value is None else f"{value / unit:.1f}"


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / _MIB:.1f} MiB"


def _table(rows: list[list[str]], left: int = 0) -> list[str]:
    """Columns to the right, the first `left` of them to the left."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  "
        + "  ".join(
            f"{cell:<{width}}" if i < left else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
