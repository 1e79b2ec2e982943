"""The server itself: its state, its engine, and what went wrong."""

from __future__ import annotations

from service.telemetry.catalog.metric import Kind, Label, Metric

LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)

INFO = Metric(
    name="plimsoll_server_info",
    kind=Kind.GAUGE,
    help="Always 1; the labels tell what runs.",
    labels=(Label("version", None),),
)
MODEL_INFO = Metric(
    name="plimsoll_model_info",
    kind=Kind.GAUGE,
    help="Always 1, once the model is loaded; the labels tell which model it is and how it runs.",
    labels=tuple(
        Label(name, None)
        for name in ("version", "weights_dtype", "kv_dtype", "device", "attention_backend")
    ),
)
STARTED = Metric(
    name="plimsoll_server_start_timestamp_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="When the server process started, in Unix time.",
)
STATE = Metric(
    name="plimsoll_server_state",
    kind=Kind.GAUGE,
    help="1 for the state that the server is in, 0 for the others.",
    labels=(Label("state", ("starting", "ready", "restarting", "draining", "failed", "stopped")),),
)
LOOP_LAG = Metric(
    name="plimsoll_event_loop_lag_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    help="By how much a timer of the server's event loop came late, looked at twice a second.",
    buckets=LAG_BUCKETS,
)
RESTARTS = Metric(
    name="plimsoll_engine_restarts_total",
    kind=Kind.COUNTER,
    help="Engines that died and were replaced.",
)
SEQUENCES = Metric(
    name="plimsoll_engine_sequences",
    kind=Kind.GAUGE,
    help="Candidates in the engine: running in its batch, waiting for it, or preempted.",
    labels=(Label("state", ("running", "waiting", "preempted")),),
)
STEPS = Metric(
    name="plimsoll_engine_steps_total",
    kind=Kind.COUNTER,
    help="Steps that the engine has computed.",
)
BUSY = Metric(
    name="plimsoll_engine_busy_seconds_total",
    kind=Kind.COUNTER,
    unit="seconds",
    help="Time that steps of the engine have taken; its rate is the share of time it is busy.",
)
COMPUTED_TOKENS = Metric(
    name="plimsoll_engine_computed_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help="Tokens that the engine has computed: prefill, of prompts and once more of what was "
    "lost; decode, new ones.",
    labels=(Label("phase", ("prefill", "decode")),),
)
STEP_TIME = Metric(
    name="plimsoll_engine_step_duration_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="Duration of a step, as a moving average.",
)
FLIGHT_RECORDS = Metric(
    name="plimsoll_flight_records",
    kind=Kind.GAUGE,
    help="Flight records on disk, those of earlier servers included.",
)
FLIGHT_LOST = Metric(
    name="plimsoll_flight_lost_records_total",
    kind=Kind.COUNTER,
    help="Flight records that could not be written.",
)
FLIGHT_LAST = Metric(
    name="plimsoll_flight_last_record_timestamp_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="When the newest flight record was made, in Unix time. It outlives the server.",
)
FAULTS = Metric(
    name="plimsoll_faults_ordered",
    kind=Kind.GAUGE,
    help="Faults that were ordered and are not over. Only where faults are allowed.",
)
FAULT_STRIKES = Metric(
    name="plimsoll_fault_strikes_total",
    kind=Kind.COUNTER,
    help="Faults that were carried out on purpose.",
)
LOG_SUPPRESSED = Metric(
    name="plimsoll_log_records_suppressed_total",
    kind=Kind.COUNTER,
    help="Log records left out because too many of their kind came within a minute.",
)
SPANS = Metric(
    name="plimsoll_trace_spans_total",
    kind=Kind.COUNTER,
    help="Spans of traces: exported, a collector has taken them; dropped, as too many waited; "
    "failed, a collector did not take them.",
    labels=(Label("result", ("exported", "dropped", "failed")),),
)

METRICS = (
    *(INFO, MODEL_INFO, STARTED, STATE, LOOP_LAG, RESTARTS),
    *(SEQUENCES, STEPS, BUSY, COMPUTED_TOKENS, STEP_TIME),
    *(FLIGHT_RECORDS, FLIGHT_LOST, FLIGHT_LAST, FAULTS, FAULT_STRIKES),
    *(LOG_SUPPRESSED, SPANS),
)
