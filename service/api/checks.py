"""Collects the fields of a request that are out of their limits.

Every comparison is written so that NaN fails it: `low <= value <= high` is false for NaN,
`value < low or value > high` would let it pass.
"""

from __future__ import annotations

import json
from collections.abc import Sequence, Sized
from typing import Any

from google.protobuf.duration_pb2 import Duration

from service.api.errors import FieldViolation, InvalidRequest


class Checks:
    """The violations found so far; `path` arguments are relative to `prefix`."""

    def __init__(self, prefix: str = "", found: list[FieldViolation] | None = None) -> None:
        self._prefix = prefix
        self._found = [] if found is None else found

    def under(self, path: str) -> Checks:
        """The same collection, with paths below `path`."""
        return Checks(self._at(path) + ".", self._found)

    def refuse(self, path: str, value: object, limit: str) -> None:
        self._found.append(FieldViolation(self._at(path), value, limit))

    def finish(self) -> None:
        """Raises InvalidRequest when anything was found."""
        if self._found:
            raise InvalidRequest(self._found)

    def in_range(self, path: str, value: float, low: float, high: float, unit: str = "") -> None:
        """Both ends are allowed."""
        if not low <= value <= high:
            self.refuse(path, value, f"must be in [{low:g}, {high:g}] {unit}".rstrip())

    def above_in_range(
        self, path: str, value: float, low: float, high: float, unit: str = ""
    ) -> None:
        """The upper end is allowed, the lower one is not."""
        if not low < value <= high:
            self.refuse(path, value, f"must be in ({low:g}, {high:g}] {unit}".rstrip())

    def at_most_bytes(self, path: str, text: str, limit_bytes: int) -> None:
        if len(text.encode()) > limit_bytes:
            self.refuse(path, text, f"must have at most {limit_bytes} bytes")

    def count(self, path: str, items: Sized, low: int, high: int) -> bool:
        """Whether the number of items is allowed; look at the items only then."""
        if low <= len(items) <= high:
            return True
        self.refuse(f"{path}.length", len(items), f"must be in [{low}, {high}]")
        return False

    def token_ids(self, path: str, ids: Sequence[int], vocab_size: int) -> None:
        """Ids are unsigned on the wire, so that only the upper limit is left to check."""
        if len(ids) == 0 or max(ids) < vocab_size:
            return
        index = next(i for i, token_id in enumerate(ids) if token_id >= vocab_size)
        self.refuse(
            f"{path}[{index}]", ids[index], f"must be below the vocabulary size {vocab_size}"
        )

    def json_value(self, path: str, text: str, kind: type, limit_bytes: int) -> Any:
        """The parsed JSON text, None when it is empty or refused."""
        if not text:
            return None
        if len(text.encode()) > limit_bytes:
            self.refuse(path, text, f"must have at most {limit_bytes} bytes")
            return None
        wanted = "must be a JSON object" if kind is dict else "must be a JSON array"
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            self.refuse(path, text, wanted)
            return None
        if not isinstance(value, kind):
            self.refuse(path, text, wanted)
            return None
        return value

    def _at(self, path: str) -> str:
        return self._prefix + path


def seconds_of(value: Duration) -> float:
    """A Duration as a float, whatever the signs and sizes of its two fields."""
    return value.seconds + value.nanos / 1e9
