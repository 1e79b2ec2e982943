"""Metrics whose owners have not landed them."""

from service.telemetry.catalog import Kind, Label, Metric
from service.telemetry.catalog.tenants import TENANT

G, C, H = Kind.GAUGE, Kind.COUNTER, Kind.HISTOGRAM


def _m(name: str, kind: Kind, *labels: Label, **kw: object) -> Metric:
    return Metric(name="plimsoll_" + name, kind=kind, help="", labels=labels, **kw)  # type: ignore[arg-type]


ADMIN_ACTIONS = _m("admin_actions_total", C, Label("action", None))
UTILIZATION = _m("memory_utilization_ratio", G)
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
TENANT_FIRST_TOKEN = _m("tenant_time_to_first_token_seconds", H, TENANT)
SPANS = _m("trace_spans_total", C, Label("result", ("exported", "dropped", "failed")))
LOGS_SUPPRESSED = _m("log_records_suppressed_total", C)
GPU = Label("gpu", None)
GPU_CAPACITY = _m("gpu_memory_capacity_bytes", G, GPU)
GPU_USED = _m("gpu_memory_used_bytes", G, GPU)
GPU_RESERVED = _m("gpu_memory_reserved_bytes", G, GPU)
GPU_PROCESS = _m("gpu_process_memory_bytes", G, GPU)
GPU_PROCESS_KNOWN = _m("gpu_process_memory_known", G, GPU)
GPU_UTILIZATION = _m("gpu_utilization_ratio", G, GPU)
NVML_AVAILABLE = _m("nvml_available", G)
GPU_SAMPLED = _m("gpu_sample_timestamp_seconds", G)
GPU_FAILURES = _m("gpu_sample_failures_total", C)
