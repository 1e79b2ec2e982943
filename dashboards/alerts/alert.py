"""An alert as plain data, before it is written in anybody's format."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

MAX_UID_LENGTH = 40  # of a rule in Grafana

_NAME = re.compile(r"Plimsoll([A-Z][a-z]+)+")


class AlertError(ValueError):
    """An alert that does not say what it has to."""


class Severity(enum.StrEnum):
    """Who is to hear of it."""

    CRITICAL = "critical"  # wakes somebody
    WARNING = "warning"  # somebody looks at it today
    INFO = "info"  # is there for who looks


class AlertKind(enum.StrEnum):
    """What it tells of the end of memory."""

    PRECURSOR = "precursor"  # it comes
    SYMPTOM = "symptom"  # users notice something, whether or not it comes
    FACT = "fact"  # something has failed
    BLINDNESS = "blindness"  # nobody would see it come


class Comparison(enum.StrEnum):
    """Of a value with its threshold. Strict ones, which all formats have."""

    ABOVE = ">"
    BELOW = "<"


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What has to hold. `query` answers for every healthy server too."""

    query: str
    comparison: Comparison
    threshold: float
    unit: str  # of query and threshold

    @property
    def expr(self) -> str:
        """As PromQL: the series for which it holds, with the value of the query."""
        return f"({self.query}) {self.comparison} {self.threshold:.12g}"


@dataclass(frozen=True, slots=True)
class Lead:
    """How long before a step finds no memory, or a sequence no block, an alert may be expected."""

    least_seconds: int
    most_seconds: int

    def __str__(self) -> str:
        if self.most_seconds < 120:
            return f"{self.least_seconds}-{self.most_seconds} s"
        return f"{self.least_seconds} s to {self.most_seconds // 60} min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert, for each server that is scraped."""

    name: str
    summary: str  # what is wrong, in one line
    description: str  # what it means; templates of Prometheus
    condition: Condition
    guards: tuple[Condition, ...] = ()  # that have to hold as well
    for_seconds: int
    severity: Severity
    kind: AlertKind
    lead: Lead | None = None  # of a precursor
    dashboard: str  # uid
    panel: str  # title: where to look first

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise AlertError(f"{self.name}: a name begins with Plimsoll and is in CamelCase")
        if len(self.uid) > MAX_UID_LENGTH:
            raise AlertError(f"{self.name}: {self.uid} has more than {MAX_UID_LENGTH} characters")
        if (self.kind is AlertKind.PRECURSOR) is (self.lead is None):
            raise AlertError(f"{self.name}: a precursor, and nothing else, has a lead")

    @property
    def uid(self) -> str:
        """Identity in Grafana: stays as long as the name does."""
        words = re.findall("[A-Z][a-z]+", self.name)
        return "-".join(words).lower()

    @property
    def expr(self) -> str:
        """As PromQL, with threshold and guards."""
        return " and ".join((self.condition.expr, *(f"({guard.expr})" for guard in self.guards)))

    @property
    def guarded_query(self) -> str:
        """The query where the guards hold, without the threshold."""
        if not self.guards:
            return self.condition.query
        guards = " and ".join(f"({guard.expr})" for guard in self.guards)
        return f"({self.condition.query}) and {guards}"


@dataclass(frozen=True, slots=True)
class Recording:
    """A query under a name, where alerts need its past."""

    name: str
    query: str
