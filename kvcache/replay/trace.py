"""Traces of requests: Mooncake's JSON lines (FAST 2025) and Azure's CSV (Splitwise, ISCA 2024)."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kvcache.errors import KVCacheError

MOONCAKE_BLOCK_TOKENS = 512  # tokens behind one hash id, says the trace's paper

_AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_AZURE_TIME = "%Y-%m-%d %H:%M:%S"


class TraceError(KVCacheError, ValueError):
    """A trace that cannot be used: the file, where known the line and the field, and why."""

    def __init__(
        self, path: Path, reason: str, *, line: int | None = None, field: str | None = None
    ) -> None:
        where = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.line = line
        self.field = field
        self.reason = reason


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One request as it was recorded.

    `hash_ids` name leading blocks of the prompt, whatever their size: requests with equal
    leading ids have equal leading tokens. Empty: it shares nothing.
    """

    arrival_seconds: float  # since the beginning of the trace's clock
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


def read_trace(path: Path) -> list[TraceRequest]:
    """All requests of a trace in the order of the file, which may be gzipped (`.gz`).

    JSON lines have `timestamp` (milliseconds), `input_length`, `output_length` and, where the
    trace tells what is shared, `hash_ids`. The CSV has the columns `TIMESTAMP` (a date and
    time), `ContextTokens` and `GeneratedTokens`.

    Raises:
        TraceError: it cannot be read, is neither, or a line has a field that makes no sense.
    """
    try:
        requests = list(_requests(path))
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise TraceError(path, str(error)) from error
    if not requests:
        raise TraceError(path, "there is no request in it")
    return requests


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a text file, gzipped or not, with their numbers from 1."""
    with (
        gzip.open(path, "rt", encoding="utf-8")
        if path.suffix == ".gz"
        else path.open(encoding="utf-8") as lines
    ):
        yield from enumerate(lines, 1)


def _requests(path: Path) -> Iterator[TraceRequest]:
    lines = ((number, line) for number, line in numbered_lines(path) if line.strip())
    first = next(lines, None)
    if first is not None and first[1].lstrip().startswith("{"):
        yield _mooncake(path, *first)
        for number, line in lines:
            yield _mooncake(path, number, line)
        return
    header = [] if first is None else next(csv.reader([first[1]]))
    if not set(_AZURE_COLUMNS) <= set(header):
        raise TraceError(
            path,
            f"neither a CSV with {', '.join(_AZURE_COLUMNS)}"
            " nor JSON lines with timestamp, input_length and output_length",
        )
    for number, line in lines:
        yield _azure(path, number, dict(zip(header, next(csv.reader([line])), strict=False)))


def _mooncake(path: Path, number: int, line: str) -> TraceRequest:
    try:
        entry = json.loads(line)
    except ValueError as error:
        raise TraceError(path, f"not JSON: {error}", line=number) from error
    if not isinstance(entry, dict):
        raise TraceError(path, "not a JSON object", line=number)
    milliseconds = _field(path, number, entry, "timestamp")
    if (
        isinstance(milliseconds, bool)
        or not isinstance(milliseconds, int | float)
        or not 0 <= milliseconds < math.inf
    ):
        raise _bad(path, number, "timestamp", milliseconds, "a number of milliseconds from 0")
    ids = entry.get("hash_ids", [])
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise _bad(path, number, "hash_ids", ids, "a list of integers")
    return TraceRequest(
        arrival_seconds=milliseconds / 1e3,
        prompt_tokens=_count(path, number, entry, "input_length", 1),
        output_tokens=_count(path, number, entry, "output_length", 0),
        hash_ids=tuple(ids),
    )


def _azure(path: Path, number: int, row: Mapping[str, object]) -> TraceRequest:
    stamp = str(_field(path, number, row, "TIMESTAMP"))
    seconds, _, fraction = stamp.partition(".")
    try:
        whole = datetime.strptime(seconds, _AZURE_TIME) - datetime(1970, 1, 1)
        # Seven digits: one more than datetime reads.
        part = int(fraction) / 10 ** len(fraction) if fraction else 0.0
    except ValueError as error:
        raise _bad(path, number, "TIMESTAMP", stamp, "a date and time") from error
    return TraceRequest(
        arrival_seconds=whole.total_seconds() + part,
        prompt_tokens=_count(path, number, row, "ContextTokens", 1),
        output_tokens=_count(path, number, row, "GeneratedTokens", 0),
    )


def _field(path: Path, number: int, entry: Mapping[str, object], field: str) -> object:
    try:
        return entry[field]
    except KeyError:
        raise TraceError(path, f"{field} is missing", line=number, field=field) from None


def _count(path: Path, number: int, entry: Mapping[str, object], field: str, minimum: int) -> int:
    value = _field(path, number, entry, field)
    try:
        count = value if type(value) is int else int(value) if isinstance(value, str) else None
    except ValueError:
        count = None
    if count is None or count < minimum:
        raise _bad(path, number, field, value, f"an integer of at least {minimum}")
    return count


def _bad(path: Path, number: int, field: str, value: object, wanted: str) -> TraceError:
    reason = f"{field} = {value!r} is not {wanted}"
    return TraceError(path, reason, line=number, field=field)
