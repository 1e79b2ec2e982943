"""Exemplars: the trace of a sampled request beside what it took, in OpenMetrics alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from metrics_page import MetricsPage, page_of

from service.engine.messages import FinishReason, SamplingParams
from service.front.call import GenerationCall
from service.front.events import Timings, Usage
from service.front.observer import Ending
from service.front.trace_context import TraceContext
from service.telemetry.catalog import Metric, requests, vllm
from service.telemetry.exporter import Exporter
from service.telemetry.exposition import Format
from service.telemetry.request_metrics import RequestMetrics
from service.telemetry.tenants import TenantNames

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACE = TraceContext(TRACE_ID, "00f067aa0ba902b7", None, is_sampled=True)
CALL = GenerationCall(
    request_id="r", prompt_ids=[1, 2], sampling=SamplingParams(), tenant="t", trace=TRACE
)
ENDING = Ending(
    error=None,
    completed=True,
    finish_reasons=[FinishReason.EOS],
    usage=Usage(2, 2, 0, 0),
    timings=Timings(0.1, 0.2, 0.3, 0.2, 0.0, 0.0, 0),
    duration_seconds=0.5,
)
# By metric, the seconds that the request took.
TAKEN = {
    requests.QUEUE: 0.1,
    requests.FIRST_TOKEN: 0.3,
    requests.TOKEN_GAP: 0.2,
    requests.DURATION: 0.5,
}


def told(call: GenerationCall) -> Exporter:
    """An exporter that heard of one request and of nothing else."""
    exporter = Exporter("m")
    observer = RequestMetrics(exporter, TenantNames(3, []))
    for alias, metric in vllm.ALIASES.items():
        exporter.add_alias(alias, metric)
    observer.admitted(call)
    observer.scheduled(call, TAKEN[requests.QUEUE])
    observer.first_token(call, TAKEN[requests.FIRST_TOKEN], 0.2)
    observer.received(call, 1, None)
    observer.received(call, 1, TAKEN[requests.TOKEN_GAP])
    observer.ended(call, ENDING)
    return exporter


def exemplars(page: MetricsPage, metric: Metric) -> dict[str, tuple[dict[str, str], float]]:
    """By bound of the bucket."""
    return {
        sample.labels["le"]: (sample.exemplar.labels, sample.exemplar.value)
        for sample in page.samples
        if sample.name == metric.name + "_bucket" and sample.exemplar is not None
    }


@pytest.mark.parametrize("metric", TAKEN, ids=lambda metric: metric.name)
def test_the_bucket_of_a_sampled_request_names_its_trace(metric: Metric) -> None:
    page = page_of(told(CALL), Format.OPENMETRICS)
    bound = next(bound for bound in metric.buckets if bound >= TAKEN[metric])
    expected = {str(bound): ({"trace_id": TRACE_ID}, TAKEN[metric])}
    assert exemplars(page, metric) == expected
    (alias,) = (alias for alias, ours in vllm.ALIASES.items() if ours is metric)
    assert exemplars(page, alias) == expected


@pytest.mark.parametrize("trace", [None, replace(TRACE, is_sampled=False)], ids=["none", "other"])
def test_a_request_that_cannot_be_looked_up_has_none(trace: TraceContext | None) -> None:
    page = page_of(told(replace(CALL, trace=trace)), Format.OPENMETRICS)
    assert page.value(requests.FIRST_TOKEN, "_count") == 1
    assert [sample.name for sample in page.samples if sample.exemplar is not None] == []


def test_no_other_series_has_one_and_all_are_short() -> None:
    page = page_of(told(CALL), Format.OPENMETRICS)
    seen = [sample for sample in page.samples if sample.exemplar is not None]
    assert len(seen) == 2 * len(TAKEN)
    for sample in seen:
        assert sample.name.endswith("_bucket")
        assert sum(len(k) + len(v) for k, v in sample.exemplar.labels.items()) <= 128
        assert float(sample.exemplar.timestamp) > 1.6e9


def test_the_text_format_has_none_and_is_else_the_same() -> None:
    exporter = told(CALL)
    text = "".join(exporter.write(Format.TEXT))
    assert TRACE_ID not in text
    assert all("#" not in line for line in text.splitlines() if not line.startswith("#"))
    assert page_of(exporter).series == page_of(exporter, Format.OPENMETRICS).series


def test_the_latest_request_of_a_bucket_is_the_one_named() -> None:
    exporter = Exporter("m")
    histogram = exporter.histogram(requests.QUEUE)
    for trace_id in ("a", "b"):
        histogram.observe(0.1, {"trace_id": trace_id})
        page = page_of(exporter, Format.OPENMETRICS)
        assert exemplars(page, requests.QUEUE) == {"0.16": ({"trace_id": trace_id}, 0.1)}
    histogram.observe(0.1)
    assert exemplars(page_of(exporter, Format.OPENMETRICS), requests.QUEUE)
