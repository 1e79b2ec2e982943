"""What is known of a metric before it has a value."""

from __future__ import annotations

import enum
from dataclasses import dataclass

# On every metric of ours: it has the name of the model that clients use. Namespace and pod are
# labels that whoever scrapes adds.
MODEL_LABEL = "model"


class Kind(enum.Enum):
    """Of a metric, as Prometheus tells them apart."""

    COUNTER = "counter"  # only grows, over restarts of the engine too; to be seen as a rate
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """A dimension of a metric beside the model."""

    name: str
    values: tuple[str, ...] | None  # all there can be, each with a series from the start
    # None: they are not known beforehand


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family. `name` is the one to query: of a counter, with its `_total`."""

    name: str
    kind: Kind
    help: str
    unit: str = ""  # the name ends with it; empty: a number of what the name says
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()  # upper bounds without infinity, of a histogram
    model_label: str = MODEL_LABEL

    @property
    def label_names(self) -> tuple[str, ...]:
        """Without `model_label`."""
        return tuple(label.name for label in self.labels)

    @property
    def family(self) -> str:
        """The name without the suffix of a counter."""
        return self.name.removesuffix("_total")
