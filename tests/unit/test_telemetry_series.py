"""Which series there are: all that are known from the start, and never more than a budget."""

from __future__ import annotations

import itertools

import pytest
from api_fakes import FakeFront
from metrics_page import MetricsPage

from service.config import EngineSettings, ServeSettings
from service.engine.messages import SamplingParams
from service.front.call import GenerationCall
from service.front.observer import RequestObserver
from service.telemetry.catalog import METRICS, Kind, Metric, server, tenants
from service.telemetry.exposition import Format
from service.telemetry.http_request import HttpRequest
from service.telemetry.metrics import Metrics

# Of a server with the default of 20 tenants, two GPUs, and the names of vLLM. A series costs
# whoever scrapes some kilobytes of memory, for each pod.
BUDGET_SERIES = 1500


class StartingFront(FakeFront):
    """Its engine has not spoken, and requests are not over: all counters are at their birth."""

    def __init__(self) -> None:
        super().__init__()
        self.engine, self.model = None, None
        self.observers: list[RequestObserver] = []

    def observe(self, observer: RequestObserver) -> None:
        self.observers.append(observer)


async def page_of_server(metrics: Metrics) -> MetricsPage:
    answer = await metrics.respond(HttpRequest("GET", "/metrics", Format.TEXT.value))
    return MetricsPage.of(answer.body)


def metrics_of(front: FakeFront) -> Metrics:
    settings = ServeSettings(vllm_metrics=True, engine=EngineSettings(tenant_shares="a=1-2"))
    return Metrics(front, settings)  # type: ignore[arg-type]


def known_labels(metric: Metric) -> list[dict[str, str]]:
    values = [label.values or () for label in metric.labels]
    return [
        dict(zip(metric.label_names, chosen, strict=True)) for chosen in itertools.product(*values)
    ]


@pytest.fixture
async def birth() -> MetricsPage:
    return await page_of_server(metrics_of(StartingFront()))


async def test_every_counter_is_born_at_0_with_all_known_labels(birth: MetricsPage) -> None:
    counters = [
        metric
        for metric in METRICS.values()
        # The fake front has replaced an engine.
        if metric.kind is not Kind.GAUGE and metric is not server.RESTARTS
    ]
    assert len(counters) > 40
    for metric in counters:
        suffix = "_count" if metric.kind is Kind.HISTOGRAM else ""
        assert set(birth.values(metric, suffix)) <= {0.0}, metric.name
        if all(label.values is not None for label in metric.labels):
            for labels in known_labels(metric):
                assert len(birth.values(metric, suffix, **labels)) == 1, (metric.name, labels)


async def test_tenants_with_a_share_are_there_before_their_first_request(
    birth: MetricsPage,
) -> None:
    for metric in tenants.METRICS:
        suffix = "_count" if metric.kind is Kind.HISTOGRAM else ""
        for tenant in ("a", "default", "other"):
            if metric.kind is not Kind.GAUGE:
                assert birth.value(metric, suffix, tenant=tenant) == 0.0


async def test_however_many_tenants_come_the_series_stay_within_the_budget() -> None:
    front = StartingFront()
    metrics = metrics_of(front)
    series = []
    for number in range(2000):
        call = GenerationCall(
            request_id="r", prompt_ids=[1], sampling=SamplingParams(), tenant=f"t{number}"
        )
        for observer in front.observers:
            observer.admitted(call)
            observer.first_token(call, 0.1, 0.05)
        if number in (100, 1999):
            series.append(len((await page_of_server(metrics)).series))
    assert series[0] == series[1] <= BUDGET_SERIES
