"""What a rule objects to, and where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """A panel, variable, annotation or alert in a file."""

    file: str
    name: str  # empty: the file as a whole


@dataclass(frozen=True, slots=True)
class Finding:
    """One objection of one rule."""

    place: Place
    rule: str
    message: str

    def __str__(self) -> str:
        where = f"{self.place.file}: {self.place.name}" if self.place.name else self.place.file
        return f"{where}: {self.message} [{self.rule}]"
