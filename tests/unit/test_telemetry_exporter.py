"""What the exporter takes, and what of it is there before anything has happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
from metrics_page import page_of

from service.telemetry.catalog import Metric, cache, requests, server, tenants, vllm
from service.telemetry.exporter import Exporter, Reading, UncataloguedError


def test_a_counter_is_there_at_0_with_all_its_label_values() -> None:
    exporter = Exporter("m")
    exporter.counter(requests.REFUSED, "draining")
    refused = page_of(exporter)
    assert len(refused.values(requests.REFUSED, model="m")) == len(requests.REASON.values or ())
    assert refused.total(requests.REFUSED) == 0


def test_a_label_without_known_values_has_none_until_one_comes() -> None:
    exporter = Exporter("m")
    exporter.counter(tenants.ADMITTED, "blue").inc(2)
    assert page_of(exporter).values(tenants.ADMITTED) == [2]


def test_the_same_instrument_is_had_twice() -> None:
    exporter = Exporter("m")
    exporter.counter(requests.ADMITTED).inc()
    exporter.counter(requests.ADMITTED).inc()
    exporter.histogram(requests.QUEUE).observe(1)
    exporter.histogram(requests.QUEUE).observe(2)
    made = page_of(exporter)
    assert made.value(requests.ADMITTED) == 2
    assert made.value(requests.QUEUE, "_count") == 2
    assert made.value(requests.QUEUE, "_sum") == 3


STRANGER = replace(requests.ADMITTED, name="plimsoll_strangers_total")
CHANGED = replace(requests.ADMITTED, help="Something else.")


@pytest.mark.parametrize("metric", [STRANGER, CHANGED], ids=["name", "definition"])
def test_a_metric_that_is_not_in_the_catalogue_is_refused(metric: Metric) -> None:
    exporter = Exporter("m")
    with pytest.raises(UncataloguedError, match="not in the catalogue"):
        exporter.counter(metric)
    exporter.add_readings(lambda: [Reading(metric, 1)])
    with pytest.raises(UncataloguedError, match="not in the catalogue"):
        page_of(exporter)


@pytest.mark.parametrize(
    ("metric", "labels", "words"),
    [
        (requests.QUEUE, (), "is a histogram, not a counter"),
        (requests.REFUSED, (), "0 label values, not 1"),
        (requests.ADMITTED, ("x",), "1 label values, not 0"),
        (requests.REFUSED, ("bad mood",), "reason='bad mood' is none of"),
    ],
)
def test_a_counter_that_the_catalogue_does_not_have(
    metric: Metric, labels: tuple[str, ...], words: str
) -> None:
    with pytest.raises(UncataloguedError, match=words):
        Exporter("m").counter(metric, *labels)


def test_a_reading_with_a_value_that_its_label_does_not_have() -> None:
    exporter = Exporter("m")
    exporter.add_readings(lambda: [Reading(cache.BLOCKS, 1, ("lost",))])
    with pytest.raises(UncataloguedError, match="state='lost' is none of"):
        page_of(exporter)


def test_readings_are_taken_anew_each_time() -> None:
    exporter, restarts = Exporter("m"), iter(range(3, 9))
    exporter.add_readings(lambda: [Reading(server.RESTARTS, next(restarts))])
    assert [page_of(exporter).value(server.RESTARTS) for _ in range(2)] == [3, 4]


def test_an_alias_says_what_its_metric_says() -> None:
    exporter = Exporter('strange "model"\n')
    exporter.histogram(requests.FIRST_TOKEN).observe(0.3)
    exporter.counter(requests.OUTPUT_TOKENS).inc(7)
    aliases = {metric: alias for alias, metric in vllm.ALIASES.items()}
    for metric in (requests.FIRST_TOKEN, requests.OUTPUT_TOKENS):
        exporter.add_alias(aliases[metric], metric)
    said = page_of(exporter)
    for metric in (requests.FIRST_TOKEN, requests.OUTPUT_TOKENS):
        alias = aliases[metric]
        ours = {
            (sample.name.removeprefix(metric.name), sample.labels.get("le")): sample.value
            for sample in said.samples
            if sample.name.startswith(metric.name)
        }
        theirs = {
            (sample.name.removeprefix(alias.name), sample.labels.get("le")): sample.value
            for sample in said.samples
            if sample.name.startswith(alias.name)
        }
        assert theirs == ours
        assert any(theirs.values())
    (model,) = {s.labels["model_name"] for s in said.samples if s.name.startswith("vllm:")}
    assert model == 'strange "model"\n'
