"""Metrics whose owners have not landed them."""

from service.telemetry.catalog import Kind, Label, Metric

G, C, H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM


def _m(name: str, kind: Kind, *labels: Label, **kw: object) -> Metric:
    return Metric(name="plimsoll_" + name, kind=kind, help="", labels=labels, **kw)  # type: ignore[arg-type]


SPANS = _m("trace_spans_total", C, Label("result", ("exported", "dropped", "failed")))
LOGS_SUPPRESSED = _m("log_records_suppressed_total", C)
