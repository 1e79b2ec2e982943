"""The one error of everything that reads model files."""

from __future__ import annotations

from pathlib import Path


class ModelFileError(Exception):
    """A model file cannot be used. Says which file, which field, its value, and why."""

    def __init__(self, path: Path | str, field: str, value: object, reason: str) -> None:
        self.path = Path(path)
        self.field = field
        self.value = value
        self.reason = reason
        shown = "" if value is None else f" = {value!r}"  # None: there is none to show
        if len(shown) > 200:
            shown = shown[:200] + "…"
        super().__init__(f"{path}: {field}{shown}: {reason}")
