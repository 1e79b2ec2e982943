"""Request lengths from published traces: Azure (CSV) and Mooncake (JSON lines)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from service.bench.prompt_files import numbered_lines
from service.bench.workload import Lengths, WorkloadError

MOONCAKE_BLOCK_TOKENS = 512  # tokens behind one hash id, says the trace's paper


def read_trace(path: Path) -> list[Lengths]:
    """The lengths of all requests of a trace, in order.

    Azure's CSV has the columns `ContextTokens` and `GeneratedTokens` (Splitwise, ISCA 2024);
    Mooncake's JSON lines have `input_length`, `output_length` and `hash_ids` (FAST 2025).

    Raises:
        WorkloadError: neither, or a length that is no positive integer.
    """
    first = next((line for _, line in numbered_lines(path)), "")
    if first.lstrip().startswith("{"):
        lengths = list(_mooncake(path))
    elif {"ContextTokens", "GeneratedTokens"} <= set(first.strip().split(",")):
        lengths = list(_azure(path))
    else:
        raise WorkloadError(
            f"{path}: neither a CSV with ContextTokens and GeneratedTokens"
            " nor JSON lines with input_length and output_length"
        )
    if not lengths:
        raise WorkloadError(f"{path}: there is no request in it")
    return lengths


def _azure(path: Path) -> Iterator[Lengths]:
    rows = csv.DictReader(line for _, line in numbered_lines(path))
    for row in rows:
        yield Lengths(
            _positive(path, rows.line_num, "ContextTokens", row["ContextTokens"]),
            _positive(path, rows.line_num, "GeneratedTokens", row["GeneratedTokens"]),
        )


def _mooncake(path: Path) -> Iterator[Lengths]:
    for number, line in numbered_lines(path):
        try:
            entry = json.loads(line)
            sizes = entry["input_length"], entry["output_length"]
            blocks = tuple(int(block) for block in entry.get("hash_ids", ()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise WorkloadError(
                f"{path}:{number}: no object with input_length, output_length and hash_ids"
            ) from error
        yield Lengths(
            _positive(path, number, "input_length", sizes[0]),
            _positive(path, number, "output_length", sizes[1]),
            blocks,
        )


def _positive(path: Path, number: int, field: str, value: object) -> int:
    try:
        size = int(str(value))
    except ValueError:
        size = 0
    if size < 1:
        raise WorkloadError(f"{path}:{number}: {field} = {value!r} is no positive integer")
    return size
