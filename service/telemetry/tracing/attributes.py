"""Names of what spans carry.

The conventions for generative AI are still in development, and have moved to a repository of their
own, so the names are kept here rather than taken from a package. Source: OpenTelemetry semantic
conventions for generative AI, `SCHEMA_URL`.
"""

from __future__ import annotations

SCHEMA_URL = "https://opentelemetry.io/schemas/1.37.0"

OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_CHOICES = "gen_ai.request.choice.count"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
USAGE_CACHE_READ = "gen_ai.usage.cache_read.input_tokens"
ERROR_TYPE = "error.type"

OUTCOME = "plimsoll.outcome"
TENANT = "plimsoll.tenant"
PRIORITY = "plimsoll.priority"
CANDIDATE = "plimsoll.candidate"
TOKENS = "plimsoll.tokens"
PREEMPTION_MODE = "plimsoll.preemption.mode"
PREEMPTION_REASON = "plimsoll.preemption.reason"
LOST_TOKENS = "plimsoll.preemption.lost_tokens"
CACHED_TOKENS = "plimsoll.kv.cached_tokens"
RECOMPUTED_TOKENS = "plimsoll.kv.recomputed_tokens"
OOM_RUNG = "plimsoll.oom.rung"
OOM_WANTED_BYTES = "plimsoll.oom.wanted_bytes"
LEFT_OUT_SPANS = "plimsoll.left_out.spans"
LEFT_OUT_EVENTS = "plimsoll.left_out.events"
