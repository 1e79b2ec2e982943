"""The page: golden, the same in both formats, and written without holding up the event loop."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from api_fakes import ENGINE_STATS, FakeFront
from memory_figures import VITALS
from metrics_page import MetricsPage
from prometheus_client import exposition
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector

from service.config import EngineSettings, ServeSettings
from service.device.nvml import GpuMemory
from service.front.faults import FaultFigures
from service.front.state import FrontStats
from service.telemetry import page as page_module
from service.telemetry.catalog import METRICS, gpu, memory, server
from service.telemetry.exposition import Format
from service.telemetry.gpu_sampler import GpuSample, GpuSampler, GpuView
from service.telemetry.http_request import HttpRequest
from service.telemetry.metrics import Metrics
from service.telemetry.page import Pages

GOLDEN = Path(__file__).with_name("metrics_golden.txt")


class FullFront(FakeFront):
    """A front that has something to tell of everything."""

    def stats(self) -> FrontStats:
        self.engine = msgspec.structs.replace(ENGINE_STATS, vitals=VITALS)
        stats = super().stats()
        return FrontStats(
            **{
                **{name: getattr(stats, name) for name in FrontStats.__slots__},
                "faults": FaultFigures(ordered=2, strikes=9),
                "flight_records": 4,
                "last_flight_time": datetime(2026, 1, 2, tzinfo=UTC),
            }
        )


class SeenGpus(GpuSampler):
    """Two GPUs that were just seen, of which the driver tells all or little."""

    @property
    def view(self) -> GpuView:
        samples = (
            GpuSample("0", GpuMemory(1000, 700, 280, 20), 600, 0.35),
            GpuSample("1:0", GpuMemory(500, 0, 500, None), None, None),
        )
        now_seconds = time.monotonic()
        return GpuView(True, samples, now_seconds, now_seconds, failures=3)


async def whole_page(page_format: Format, *, vllm: bool = True) -> bytes:
    settings = ServeSettings(
        served_model_name="smollm2",
        engine=EngineSettings(tenant_shares="interactive=30-100"),
        vllm_metrics=vllm,
    )
    gpus = SeenGpus(1.0, tuple, None)
    metrics = Metrics(FullFront(), settings, gpus)  # type: ignore[arg-type]
    answer = await metrics.respond(HttpRequest("GET", "/metrics", page_format.value))
    assert answer.status == 200
    assert answer.content_type == page_format.value
    return answer.body


async def test_the_page_is_the_golden_one() -> None:
    """The names are an API. To accept a change, write what this test got to the file."""
    text = (await whole_page(Format.TEXT)).decode()
    got = re.sub(r"(timestamp_seconds\{[^}]*\}) .*", r"\1 TIME", text)
    assert got.splitlines() == GOLDEN.read_text().splitlines()


async def test_the_page_has_the_whole_catalogue_and_nothing_else() -> None:
    families = MetricsPage.of(await whole_page(Format.OPENMETRICS), openmetrics=True).families
    by_family = {metric.family: metric for metric in METRICS.values()}
    assert {family.name for family in families} == by_family.keys()
    for family in families:
        metric = by_family[family.name]
        assert (family.type, family.documentation, family.unit) == (
            *(metric.kind.value, metric.help, metric.unit),
        )
        for sample in family.samples:
            assert sample.labels.keys() - {"le"} == {metric.model_label, *metric.label_names}
            for label in metric.labels:
                assert label.values is None or sample.labels[label.name] in label.values


async def test_both_formats_say_the_same() -> None:
    text = MetricsPage.of(await whole_page(Format.TEXT))
    openmetrics = MetricsPage.of(await whole_page(Format.OPENMETRICS), openmetrics=True)
    assert text.series.keys() == openmetrics.series.keys()
    changing = (memory.SAMPLED.name, gpu.SAMPLED.name, server.STARTED.name)
    for key, value in text.series.items():
        assert value == openmetrics.series[key] or key[0] in changing


class Parsed(Collector):
    """A page that was read, for the encoders of the client."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> list[Family]:
        return self._families


async def test_a_page_is_what_the_client_writes_of_it() -> None:
    """To the byte: our own encoder is only faster."""
    text = await whole_page(Format.TEXT)
    families = MetricsPage.of(text).families
    assert exposition.generate_latest(Parsed(families)) == text
    openmetrics = await whole_page(Format.OPENMETRICS)
    families = MetricsPage.of(openmetrics, openmetrics=True).families
    # By default the client writes the colon in the name of a sample, and nowhere else, as an
    # underscore.
    written = openmetrics_exposition.generate_latest(
        Parsed(families), escaping=openmetrics_exposition.ALLOWUTF8
    )
    assert written == openmetrics


async def test_no_series_is_written_twice() -> None:
    samples = list(MetricsPage.of(await whole_page(Format.TEXT)).samples)
    assert len({(s.name, *sorted(s.labels.items())) for s in samples}) == len(samples)


async def test_the_names_of_vllm_can_be_left_out() -> None:
    assert b"vllm:" in await whole_page(Format.TEXT)
    assert b"vllm:" not in await whole_page(Format.TEXT, vllm=False)


async def test_other_paths_are_not_found() -> None:
    metrics = Metrics(FakeFront(), ServeSettings())  # type: ignore[arg-type]
    for path in ("/", "/metrics/", "/METRICS", "/../metrics"):
        assert (await metrics.respond(HttpRequest("GET", path, ""))).status == 404


class Clock:
    """Each look at it takes as long as is told."""

    def __init__(self, look_seconds: float) -> None:
        self.now_seconds = 100.0
        self._look_seconds = look_seconds

    def monotonic(self) -> float:
        self.now_seconds += self._look_seconds
        return self.now_seconds


def pieces(count: int) -> Iterator[str]:
    return (f"series_{number} 0.0\n" for number in range(count))


async def test_others_have_their_turn_while_a_page_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turns = 0
    monkeypatch.setattr(page_module, "time", Clock(look_seconds=0.0008))
    counting = asyncio.create_task(count_turns())
    body = await Pages(lambda _: pieces(100)).get(Format.TEXT)
    counting.cancel()
    # A piece takes 0.8 ms, so that after every third one it is somebody else's turn.
    assert 30 <= turns <= 40
    assert body.decode() == "".join(pieces(100))


async def test_who_asks_at_once_gets_the_page_that_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write(_: Format) -> Iterator[str]:
        nonlocal pages
        pages += 1
        return pieces(pages)

    pages = 0
    clock = Clock(look_seconds=0.0)
    monkeypatch.setattr(page_module, "time", clock)
    cache = Pages(write)
    bodies = await asyncio.gather(*(cache.get(Format.TEXT) for _ in range(10)))
    assert (pages, len(set(bodies))) == (1, 1)
    clock.now_seconds += 0.09
    assert await cache.get(Format.TEXT) == bodies[0]
    await cache.get(Format.OPENMETRICS)
    assert pages == 2
    clock.now_seconds += 0.02
    assert await cache.get(Format.TEXT) != bodies[0]


async def test_a_page_that_fails_does_not_stop_the_next() -> None:
    def write(_: Format) -> Iterator[str]:
        if not failed:
            failed.append(True)
            raise RuntimeError("no figures")
        return pieces(1)

    failed: list[bool] = []
    pages = Pages(write)
    with pytest.raises(RuntimeError):
        await pages.get(Format.TEXT)
    assert await pages.get(Format.TEXT) == b"series_0 0.0\n"
