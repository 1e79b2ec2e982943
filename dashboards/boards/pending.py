"""Metrics whose owners have not landed them."""

from service.telemetry.catalog import Kind, Label, Metric
from service.telemetry.catalog.tenants import TENANT

G, C, H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM


def _m(name: str, kind: Kind, *labels: Label, **kw: object) -> Metric:
    return Metric(name="plimsoll_" + name, kind=kind, help="", labels=labels, **kw)  # type: ignore[arg-type]


PREEMPTIONS = _m(
    "preemptions_total",
    C,
    Label("mode", ("trim", "swap", "recompute")),
    Label("reason", ("kv_full", "priority", "pool_shrunk", "oom")),
)
MISSES = _m("prefix_misses_total", C, Label("reason", None))
REGRETTED_TOKENS = _m("prefix_regretted_tokens_total", C)
SLACK_TOKENS = _m("kv_slack_tokens", G)
BLOCK_TOKENS = _m("kv_block_tokens", G)
SWAP_BYTES = _m("swap_bytes_total", C, Label("direction", ("out", "in")))
TENANT_BLOCKS = _m("tenant_kv_blocks", G, TENANT, Label("state", ("active", "cached")))
FREE_LOW = _m("kv_free_low_blocks", G)
SPANS = _m("trace_spans_total", C, Label("result", ("exported", "dropped", "failed")))
LOGS_SUPPRESSED = _m("log_records_suppressed_total", C)
GPU = Label("gpu", None)
