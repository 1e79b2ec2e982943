"""What the metrics of a server that is idle again add up to, whatever has happened to it."""

from __future__ import annotations

from metrics_page import MetricsPage

from service.telemetry.catalog import requests, tenants, vllm

_SUMS_OF_TENANTS = (
    (tenants.ADMITTED, requests.ADMITTED, ""),
    (tenants.FINISHED, requests.FINISHED, ""),
    (tenants.REFUSED, requests.REFUSED, ""),
    (tenants.PROMPT_TOKENS, requests.PROMPT_TOKENS, ""),
    (tenants.OUTPUT_TOKENS, requests.OUTPUT_TOKENS, ""),
    (tenants.FIRST_TOKEN, requests.FIRST_TOKEN, "_count"),
)


def assert_adds_up(page: MetricsPage) -> None:
    """The page of a server without a live request."""
    admitted, finished = page.value(requests.ADMITTED), page.total(requests.FINISHED)
    assert finished == admitted
    assert page.value(requests.REQUEST_PROMPT_TOKENS, "_count") == admitted
    assert page.value(requests.REQUEST_PROMPT_TOKENS, "_sum") == page.value(requests.PROMPT_TOKENS)

    completed = page.value(requests.FINISHED, outcome="completed")
    for metric in (requests.DURATION, requests.DECODE, requests.REQUEST_OUTPUT_TOKENS):
        assert page.value(metric, "_count") == completed, metric.name
    output_tokens = page.value(requests.OUTPUT_TOKENS)
    assert page.value(requests.REQUEST_OUTPUT_TOKENS, "_sum") <= output_tokens

    # Who has a first token was in a batch before, and was admitted before that.
    first_tokens = page.value(requests.FIRST_TOKEN, "_count")
    assert page.value(requests.PREFILL, "_count") == first_tokens
    assert completed <= first_tokens <= page.value(requests.QUEUE, "_count") <= admitted
    # Each token but the first of a candidate comes after a gap, alone or with others.
    assert page.value(requests.TOKEN_GAP, "_count") <= output_tokens - first_tokens
    assert page.total(requests.CANDIDATES_FINISHED) >= finished

    for ours, all_of_them, suffix in _SUMS_OF_TENANTS:
        assert page.total(ours, suffix) == page.total(all_of_them, suffix), ours.name
    if ends := page.values(vllm.SUCCESSES):
        assert sum(ends) == finished
    for metric in (requests.FIRST_TOKEN, requests.TOKEN_GAP, requests.QUEUE, requests.DURATION):
        buckets = page.values(metric, "_bucket")
        assert buckets == sorted(buckets), metric.name
        assert buckets[-1] == buckets[-2], f"{metric.name}: beyond the longest time limit"
