"""Prompts from files: plain lines, or JSON lines with `prompt` or `turns`; gzip or not."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path

from kvcache.replay.trace import numbered_lines
from service.bench.workload import WorkloadError


def read_prompts(path: Path) -> list[str]:
    """All prompts of a file, in order.

    A `.txt` file has one prompt a line, empty lines left out. A `.jsonl` file has an object
    a line: its `prompt`, or the first of its `turns` (as in MT-Bench). Either may end in
    `.gz`.

    Raises:
        WorkloadError: not such a file, or one without prompts.
    """
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind not in (".txt", ".jsonl"):
        raise WorkloadError(f"{path}: the name must end in .txt or .jsonl, with or without .gz")
    prompts = []
    for number, line in _lines(path):
        if line.strip():
            prompts.append(line.strip() if kind == ".txt" else _from_json(path, number, line))
    if not prompts:
        raise WorkloadError(f"{path}: there is no prompt in it")
    return prompts


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        yield from numbered_lines(path)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise WorkloadError(f"{path}: {error}") from error


def _from_json(path: Path, number: int, line: str) -> str:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise WorkloadError(f"{path}:{number}: not JSON: {error}") from error
    match entry:
        case {"prompt": str(prompt)} if prompt:
            return prompt
        case {"turns": [str(prompt), *_]} if prompt:
            return prompt
    raise WorkloadError(f"{path}:{number}: neither a text `prompt` nor a list of texts `turns`")
