"""The text of metrics in the formats that Prometheus reads. Pure.

The encoders of prometheus_client say the same, at ten times the cost: they sort and escape the
labels of every sample of every page. Here that is done once for each series.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable

from prometheus_client.samples import Exemplar
from prometheus_client.utils import floatToGoString

from service.telemetry.catalog import Metric


class Format(enum.Enum):
    """Of a page, by its media type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


_NO_WEIGHT = re.compile(r"q=0(\.0{0,3})?")  # RFC 9110, 12.4.2: not acceptable

END = {Format.TEXT: "", Format.OPENMETRICS: "# EOF\n"}


def preferred(accept: str) -> Format:
    """What a client wants that sends this Accept header; text when it says nothing of ours."""
    for item in accept.split(","):
        media_type, *parameters = (part.strip().lower() for part in item.split(";"))
        is_refused = any(_NO_WEIGHT.fullmatch(each) for each in parameters)
        if media_type == "application/openmetrics-text" and not is_refused:
            return Format.OPENMETRICS
    return Format.TEXT


def head(metric: Metric, page_format: Format) -> str:
    """What is said once of a family, before its samples."""
    if page_format is Format.TEXT:
        help_text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
        return f"# HELP {metric.name} {help_text}\n# TYPE {metric.name} {metric.kind.value}\n"
    family = metric.family
    text = f"# HELP {family} {_escape(metric.help)}\n# TYPE {family} {metric.kind.value}\n"
    return f"{text}# UNIT {family} {metric.unit}\n" if metric.unit else text


def sample_start(name: str, labels: Iterable[tuple[str, str]]) -> str:
    """A line up to its value."""
    pairs = ",".join(f'{label}="{_escape(value)}"' for label, value in sorted(labels))
    return f"{name}{{{pairs}}} "


def sample_end(value: float) -> str:
    """The value, and the end of the line."""
    return f"{_number(value)}\n"


def exemplar_end(value: float, exemplar: Exemplar) -> str:
    """As `sample_end`, with an exemplar: only for OpenMetrics, and there only where it may be."""
    pairs = ",".join(f'{label}="{_escape(v)}"' for label, v in sorted(exemplar.labels.items()))
    text = f"{_number(value)} # {{{pairs}}} {_number(exemplar.value)}"
    return f"{text} {exemplar.timestamp}\n"


def metric_labels(metric: Metric, model: str, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """All labels of a series; `values` in the order of `metric.labels`."""
    return [(metric.model_label, model), *zip(metric.label_names, values, strict=True)]


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
