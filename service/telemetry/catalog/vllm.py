"""Names of vLLM, for what reads those: the Gateway API inference extension, its dashboards.

Only metrics whose meaning is the same here. Source: vLLM 0.33, v1/metrics/loggers.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from service.telemetry.catalog import requests
from service.telemetry.catalog.metric import Kind, Label, Metric

PREFIX = "vllm:"
_MODEL_LABEL = "model_name"


def _gauge(name: str, text: str, *labels: Label) -> Metric:
    return Metric(
        name=PREFIX + name, kind=Kind.GAUGE, help=text, labels=labels, model_label=_MODEL_LABEL
    )


def _counter(name: str, text: str, *labels: Label) -> Metric:
    return Metric(
        name=PREFIX + name, kind=Kind.COUNTER, help=text, labels=labels, model_label=_MODEL_LABEL
    )


def _alias(name: str, ours: Metric) -> Metric:
    return replace(ours, name=PREFIX + name, model_label=_MODEL_LABEL, unit="")


RUNNING = _gauge("num_requests_running", "Requests that are or were in a batch and are not over.")
WAITING = _gauge("num_requests_waiting", "Requests that were never in a batch.")
KV_USAGE = _gauge(
    "kv_cache_usage_perc", "Share of the KV pool that is neither free nor cached; 1: all of it."
)
CACHE_CONFIG = _gauge(
    "cache_config_info",
    "Always 1, once the model is loaded; tokens of a block, and blocks at the engine's start.",
    Label("block_size", None),
    Label("num_gpu_blocks", None),
)
PREFIX_QUERIES = _counter(
    "prefix_cache_queries_total", "Tokens that the prefix cache was asked for."
)
PREFIX_HITS = _counter("prefix_cache_hits_total", "Of these, tokens that it had.")
PREEMPTIONS = _counter("num_preemptions_total", "Sequences that lost blocks.")
# vLLM has "repetition" too, which nothing ends with here.
SUCCESSES = _counter(
    "request_success_total",
    "Requests that are over, whatever the name says: stop, at an end of the text; length, at a "
    "limit of tokens or time; abort, the client or an operator left it; error, all else.",
    Label("finished_reason", ("stop", "length", "abort", "error")),
)

# The same numbers as a metric of ours has, under the other name.
ALIASES: Mapping[Metric, Metric] = MappingProxyType(
    {
        _alias("prompt_tokens_total", requests.PROMPT_TOKENS): requests.PROMPT_TOKENS,
        _alias("generation_tokens_total", requests.OUTPUT_TOKENS): requests.OUTPUT_TOKENS,
        _alias("time_to_first_token_seconds", requests.FIRST_TOKEN): requests.FIRST_TOKEN,
        _alias("inter_token_latency_seconds", requests.TOKEN_GAP): requests.TOKEN_GAP,
        _alias("e2e_request_latency_seconds", requests.DURATION): requests.DURATION,
        _alias("request_queue_time_seconds", requests.QUEUE): requests.QUEUE,
        _alias("request_prefill_time_seconds", requests.PREFILL): requests.PREFILL,
        _alias("request_decode_time_seconds", requests.DECODE): requests.DECODE,
        _alias("request_prompt_tokens", requests.REQUEST_PROMPT_TOKENS): (
            requests.REQUEST_PROMPT_TOKENS
        ),
        _alias("request_generation_tokens", requests.REQUEST_OUTPUT_TOKENS): (
            requests.REQUEST_OUTPUT_TOKENS
        ),
    }
)

METRICS = (
    *(RUNNING, WAITING, KV_USAGE, CACHE_CONFIG, PREFIX_QUERIES, PREFIX_HITS, PREEMPTIONS),
    SUCCESSES,
    *ALIASES,
)
