"""Requests, as the front accounts for them."""

from __future__ import annotations

from service.telemetry.catalog.metric import Kind, Label, Metric

# From 1 ms to a day, which is the longest time limit of a request. Between, those that the
# OpenTelemetry conventions for generative AI recommend for gen_ai.server.time_to_first_token,
# time_per_output_token and request.duration.
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 1280.0, 3600.0, 86400.0),
)
TOKEN_GAP_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0, 86400.0),
)
DURATION_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24),
    *(20.48, 40.96, 81.92, 163.84, 327.68, 655.36, 1310.72, 3600.0, 86400.0),
)
TOKEN_COUNT_BUCKETS = (1.0, *(float(4**power) for power in range(1, 11)))

OUTCOME = Label(
    "outcome",
    (
        "completed",  # the client took the end
        "cancelled",  # the client left
        "aborted",  # by an operator
        "deadline_passed",
        "deadline_unreachable",  # given up while it waited: it would have been too late
        "queue_full",  # gave way while it waited, to a tenant with fewer requests
        "slow_reader",
        "draining",
        "exceeds_capacity",
        "device_exhausted",
        "model_failed",
        "engine_lost",
        "engine_crashed",  # the request itself kills engines
    ),
)
REASON = Label(
    "reason", ("queue_full", "deadline_unreachable", "draining", "not_ready", "duplicate_id")
)
FINISH_REASON = Label(
    "reason",
    ("eos", "stop", "max_tokens", "context_length", "cancelled", "time_limit", "evicted", "none"),
)

ADMITTED = Metric(
    name="plimsoll_requests_admitted_total",
    kind=Kind.COUNTER,
    help="Requests that became live. Each is counted once more when it ends, by its outcome.",
)
FINISHED = Metric(
    name="plimsoll_requests_finished_total",
    kind=Kind.COUNTER,
    help="Requests that were live and are not any more. All outcomes add up to those admitted.",
    labels=(OUTCOME,),
)
REFUSED = Metric(
    name="plimsoll_requests_refused_total",
    kind=Kind.COUNTER,
    help="Valid requests that were not admitted.",
    labels=(REASON,),
)
CANDIDATES_FINISHED = Metric(
    name="plimsoll_candidates_finished_total",
    kind=Kind.COUNTER,
    help="Candidates of requests that are over, by why they ended; none: the request ended first.",
    labels=(FINISH_REASON,),
)
LIVE = Metric(
    name="plimsoll_live_requests",
    kind=Kind.GAUGE,
    help="Requests that are not over: waiting ones were never in a batch.",
    labels=(Label("state", ("running", "waiting")),),
)
SLOW_STREAMS = Metric(
    name="plimsoll_slow_streams",
    kind=Kind.GAUGE,
    help="Live requests with output that waits for the client to read it.",
)
RETRY_HINT = Metric(
    name="plimsoll_retry_hint_seconds",
    kind=Kind.GAUGE,
    unit="seconds",
    help="After how long a client that is refused now is told to come back.",
)
PROMPT_TOKENS = Metric(
    name="plimsoll_prompt_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help="Tokens in the prompts of admitted requests.",
)
CACHED_PROMPT_TOKENS = Metric(
    name="plimsoll_cached_prompt_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help="Of the prompts of requests that are over, tokens that the prefix cache had.",
)
OUTPUT_TOKENS = Metric(
    name="plimsoll_output_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help="Tokens received for clients, over all candidates, up to the stop of each.",
)
RECOMPUTED_TOKENS = Metric(
    name="plimsoll_recomputed_tokens_total",
    kind=Kind.COUNTER,
    unit="tokens",
    help="Of requests that are over, tokens computed again after preemptions and engine deaths.",
)
RESUBMITTED = Metric(
    name="plimsoll_resubmitted_sequences_total",
    kind=Kind.COUNTER,
    help="Candidates that went on in a new engine after the one that computed them had died.",
)
FIRST_TOKEN = Metric(
    name="plimsoll_time_to_first_token_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    help="From the arrival of a request to its first token, before the client reads it. Requests "
    "that end before are not in it.",
    buckets=FIRST_TOKEN_BUCKETS,
)
TOKEN_GAP = Metric(
    name="plimsoll_inter_token_latency_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    help="Between two tokens of a candidate, preemptions and engine deaths included.",
    buckets=TOKEN_GAP_BUCKETS,
)
QUEUE = Metric(
    name="plimsoll_request_queue_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    help="From the arrival of a request to its first batch. Requests that end before are not in "
    "it.",
    buckets=DURATION_BUCKETS,
)
PREFILL = Metric(
    name="plimsoll_request_prefill_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    help="From the first batch of a request to its first token.",
    buckets=DURATION_BUCKETS,
)
DECODE = Metric(
    name="plimsoll_request_decode_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    help="From the first token of a completed request to its last.",
    buckets=DURATION_BUCKETS,
)
DURATION = Metric(
    name="plimsoll_request_duration_seconds",
    kind=Kind.HISTOGRAM,
    unit="seconds",
    help="From the arrival of a completed request until its client has taken the end.",
    buckets=DURATION_BUCKETS,
)
REQUEST_PROMPT_TOKENS = Metric(
    name="plimsoll_request_prompt_tokens",
    kind=Kind.HISTOGRAM,
    unit="tokens",
    help="Prompt of an admitted request.",
    buckets=TOKEN_COUNT_BUCKETS,
)
REQUEST_OUTPUT_TOKENS = Metric(
    name="plimsoll_request_output_tokens",
    kind=Kind.HISTOGRAM,
    unit="tokens",
    help="Output of a completed request, over all candidates.",
    buckets=TOKEN_COUNT_BUCKETS,
)

METRICS = (
    *(ADMITTED, FINISHED, REFUSED, CANDIDATES_FINISHED, LIVE, SLOW_STREAMS, RETRY_HINT),
    *(PROMPT_TOKENS, CACHED_PROMPT_TOKENS, OUTPUT_TOKENS, RECOMPUTED_TOKENS, RESUBMITTED),
    *(FIRST_TOKEN, TOKEN_GAP, QUEUE, PREFILL, DECODE, DURATION),
    *(REQUEST_PROMPT_TOKENS, REQUEST_OUTPUT_TOKENS),
)
