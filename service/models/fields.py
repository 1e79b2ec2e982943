"""Typed, bounded access to the untyped fields of a model file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from service.models.errors import ModelFileError

_MAX_INTEGER = 1 << 31
_MAX_JSON_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping read from `path`; every complaint names the file, the field and the value.

    A field that is null counts as absent, as it does in Hugging Face configurations.
    """

    path: Path
    values: Mapping[str, object]
    prefix: str = ""  # of all names, such as "llama."

    @classmethod
    def from_json_file(cls, path: Path) -> Fields:
        """Reads a JSON object from a file of bounded size. Raises ModelFileError."""
        size_bytes = path.stat().st_size
        if size_bytes > _MAX_JSON_BYTES:
            limit = f"the limit is {_MAX_JSON_BYTES} bytes"
            raise ModelFileError(path, "file size", size_bytes, limit)
        try:
            values = json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            raise ModelFileError(path, "content", str(error), "not valid JSON") from error
        if not isinstance(values, dict):
            raise ModelFileError(path, "content", type(values).__name__, "must be a JSON object")
        return cls(path, values)

    def has(self, name: str) -> bool:
        return self.values.get(self.prefix + name) is not None

    def integer(
        self, name: str, default: int | None = None, *, low: int = 1, high: int = _MAX_INTEGER
    ) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "must be an integer")
        if not low <= value <= high:
            raise self.error(name, f"must be {low} to {high}")
        return value

    def number(self, name: str, default: float | None = None, *, low: float, high: float) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self.error(name, "must be a number")
        if not (math.isfinite(value) and low <= value <= high):
            raise self.error(name, f"must be {low:g} to {high:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "must be true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, "must be a string")
        return value

    def mapping(self, name: str) -> Mapping[str, object]:
        value = self._get(name, {})
        if not isinstance(value, dict):
            raise self.error(name, "must be an object")
        return value

    def length(self, name: str) -> int:
        """Number of items of a list."""
        value = self._get(name, None)
        if not isinstance(value, list):
            raise self.error(name, "must be a list")
        return len(value)

    def token_ids(self, name: str, vocab_size: int) -> tuple[int, ...]:
        """One id or a list of ids, each within the vocabulary; empty when absent."""
        value = self.values.get(self.prefix + name)
        if value is None:
            return ()
        ids = value if isinstance(value, list) else [value]
        for token_id in ids:
            if isinstance(token_id, bool) or not isinstance(token_id, int):
                raise self.error(name, "must be a token id or a list of them")
            if not 0 <= token_id < vocab_size:
                raise self.error(name, f"beyond the vocabulary of {vocab_size} tokens")
        return tuple(ids)

    def error(self, name: str, reason: str) -> ModelFileError:
        field = self.prefix + name
        return ModelFileError(self.path, field, self.values.get(field), reason)

    def _get(self, name: str, default: object) -> object:
        value = self.values.get(self.prefix + name)
        if value is None:
            if default is None:
                raise self.error(name, "is missing")
            return default
        return value
