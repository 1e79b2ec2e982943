"""Metrics of GPUs: a driver that fails or hangs is told, and holds up nobody; a 0 is a real 0."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from api_fakes import FakeFront
from metrics_page import MetricsPage, scrape
from nvml_stub import COMPILER, GIB, STATE_VARIABLE, NvmlStub, StubGpu

from service.config import ServeSettings
from service.device.nvml import GpuMemory, NvmlLibrary, open_library
from service.telemetry.catalog import gpu
from service.telemetry.gpu_readings import gpu_readings
from service.telemetry.gpu_sampler import GpuSample, GpuSampler, GpuView
from service.telemetry.http_request import HttpRequest
from service.telemetry.metrics import Metrics
from service.telemetry.readings import Moment

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

MEMORY = "nvmlDeviceGetMemoryInfo_v2"
BY_GPU = [metric for metric in gpu.METRICS if metric.labels]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    stub = NvmlStub(tmp_path_factory.mktemp("nvml"))
    stub.load_here()
    return stub


@pytest.fixture
def stub(library: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlStub]:
    monkeypatch.setenv(STATE_VARIABLE, str(library.state))
    yield library
    library.end()


@pytest.fixture
def start(stub: NvmlStub) -> Iterator[Callable[..., GpuSampler]]:
    samplers: list[GpuSampler] = []

    def started(open_library: Callable[[], NvmlLibrary] = open_library) -> GpuSampler:
        sampler = GpuSampler(0.01, lambda: (17,), None, open_library)
        samplers.append(sampler)
        sampler.start()
        return sampler

    yield started
    for sampler in samplers:
        sampler.stop()
    stub.end()
    for thread in threads():  # or the next test would take it for its own
        thread.join(120)


def until(sampler: GpuSampler, wanted: Callable[[GpuView], bool]) -> GpuView:
    give_up = time.monotonic() + 120
    while not wanted(view := sampler.view):
        assert time.monotonic() < give_up, view
        time.sleep(0.005)
    return view


def has_used(size_bytes: int) -> Callable[[GpuView], bool]:
    def wanted(view: GpuView) -> bool:
        memories = [sample.memory for sample in view.samples]
        return bool(memories) and memories[0] is not None and memories[0].used_bytes == size_bytes

    return wanted


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "gpu sampler"]


async def page_of(sampler: GpuSampler) -> MetricsPage:
    metrics = Metrics(FakeFront(), ServeSettings(), sampler)  # type: ignore[arg-type]
    return MetricsPage.of((await metrics.respond(HttpRequest("GET", "/metrics", ""))).body)


async def test_figures_follow_the_driver(stub: NvmlStub, start: Callable[..., GpuSampler]) -> None:
    stub.tell(StubGpu(used_bytes=GIB))
    sampler = start()
    until(sampler, has_used(GIB))
    stub.tell(StubGpu(used_bytes=70 * GIB, utilization_percent=90, processes={17: 60 * GIB}))
    until(sampler, has_used(70 * GIB))
    page = await page_of(sampler)
    told = {metric: page.values(metric, gpu="0") for metric in BY_GPU}
    assert told == {
        gpu.CAPACITY: [80 * GIB],
        gpu.USED: [70 * GIB],
        gpu.FREE: [9 * GIB],
        gpu.RESERVED: [GIB],
        gpu.PROCESS_MEMORY: [60 * GIB],
        gpu.PROCESS_MEMORY_KNOWN: [1],
        gpu.UTILIZATION: [0.9],
    }
    assert (page.value(gpu.AVAILABLE), page.value(gpu.FAILURES)) == (1, 0)
    assert time.time() - 120 < page.value(gpu.SAMPLED) <= time.time()


async def test_without_a_driver_there_is_no_gpu(
    stub: NvmlStub, start: Callable[..., GpuSampler]
) -> None:
    stub.end()
    sampler = start()
    until(sampler, lambda _view: not threads())
    page = await page_of(sampler)
    assert (page.value(gpu.AVAILABLE), page.value(gpu.FAILURES)) == (0, 0)
    assert [s.name for s in page.samples if s.name.startswith("plimsoll_gpu_")] == [
        gpu.FAILURES.name
    ]


async def test_what_is_not_supported_has_no_series(
    stub: NvmlStub, start: Callable[..., GpuSampler]
) -> None:
    parts = (StubGpu(10 * GIB), StubGpu(20 * GIB, used_bytes=5 * GIB, processes={17: None}))
    stub.tell(StubGpu(parts=parts), errors=[("nvmlDeviceGetMemoryInfo_v2 0:1", 3)])
    sampler = start()
    until(sampler, lambda view: len(view.samples) == 2)
    page = await page_of(sampler)
    assert page.values(gpu.CAPACITY, gpu="0") == []
    assert page.value(gpu.CAPACITY, gpu="0:0") == 10 * GIB
    assert page.value(gpu.USED, gpu="0:0") == 0
    assert page.value(gpu.USED, gpu="0:1") == 6 * GIB
    assert page.values(gpu.RESERVED, gpu="0:1") == []
    assert page.values(gpu.PROCESS_MEMORY) == page.values(gpu.UTILIZATION) == []
    assert page.values(gpu.PROCESS_MEMORY_KNOWN) == [0, 0]
    assert page.value(gpu.FAILURES) == 0


async def test_a_gpu_that_is_lost_is_not_an_empty_one(
    stub: NvmlStub, start: Callable[..., GpuSampler]
) -> None:
    gpus = (StubGpu(used_bytes=GIB), StubGpu(used_bytes=2 * GIB))
    stub.tell(*gpus)
    sampler = start()
    until(sampler, lambda view: len(view.samples) == 2)
    stub.tell(*gpus, lost=[1])
    lost = until(sampler, lambda view: view.failures > 0)
    later = until(sampler, lambda view: view.failures >= lost.failures + 6)
    assert later.sampled_seconds > lost.sampled_seconds, "the other one is still seen"
    assert later.answered_seconds == lost.answered_seconds
    page = await page_of(sampler)
    assert page.value(gpu.USED, gpu="0") == GIB
    for metric in BY_GPU:
        assert page.values(metric, gpu="1") == ([0] if metric is gpu.PROCESS_MEMORY_KNOWN else [])
    assert page.value(gpu.FAILURES) >= 9, "three questions a look"
    stub.tell(*gpus)
    until(sampler, lambda view: (view.answered_seconds or 0) > later.sampled_seconds)


async def test_a_call_that_hangs_holds_up_nobody(
    stub: NvmlStub, start: Callable[..., GpuSampler]
) -> None:
    stub.tell(StubGpu(used_bytes=GIB))
    sampler = start()
    until(sampler, has_used(GIB))
    stub.tell(StubGpu(used_bytes=2 * GIB), hangs=[MEMORY])
    until(sampler, lambda _view: stub.is_hanging)
    hung = sampler.view
    page = await page_of(sampler)
    assert page.value(gpu.USED, gpu="0") == GIB
    sampler.stop()
    assert threads() != [], "it waits, and nobody waits for it"
    assert sampler.view == hung
    stub.tell(StubGpu(used_bytes=2 * GIB))
    until(sampler, lambda _view: not threads())


def test_a_driver_that_fails_at_the_start_is_asked_again(
    stub: NvmlStub, start: Callable[..., GpuSampler]
) -> None:
    stub.tell(StubGpu(), errors=[("nvmlInitWithFlags", 999)])
    sampler = start()
    failing = until(sampler, lambda view: view.failures > 1)
    assert not failing.available
    assert failing.answered_seconds is not None, "how long is a question of when it was asked"
    stub.tell(StubGpu(), errors=[("nvmlDeviceGetIndex", 15)])
    until(sampler, lambda view: view.failures > failing.failures + 1)
    stub.tell(StubGpu())
    assert until(sampler, lambda view: len(view.samples) == 1).available


def test_a_driver_that_hangs_at_the_start_is_told_by_its_age(
    stub: NvmlStub, start: Callable[..., GpuSampler]
) -> None:
    stub.tell(StubGpu(), hangs=["nvmlInitWithFlags"])
    began_seconds = time.monotonic()
    view = until(start(), lambda _view: stub.is_hanging)
    assert (view.available, view.samples, view.failures) == (False, (), 0)
    assert view.answered_seconds is not None
    assert began_seconds <= view.answered_seconds < time.monotonic()
    stub.tell(StubGpu())


def test_after_the_end_nobody_asks(stub: NvmlStub, start: Callable[..., GpuSampler]) -> None:
    stub.tell(StubGpu(), errors=[("nvmlInitWithFlags", 999)])
    never_open, open_already = start(), start()
    until(never_open, lambda view: view.failures > 0)
    stub.tell(StubGpu())
    until(open_already, lambda view: view.available)
    for sampler in (never_open, open_already):
        sampler.stop()
        sampler.stop()
    until(open_already, lambda _view: not threads())


async def test_who_does_not_want_it_is_not_looked_at(stub: NvmlStub) -> None:
    stub.tell(StubGpu())
    settings = ServeSettings(metrics_port=0, gpu_sample_seconds=0.0)
    metrics = Metrics(FakeFront(), settings)  # type: ignore[arg-type]
    await metrics.start()
    try:
        assert threads() == []
        page = await scrape(metrics.address)
    finally:
        await metrics.stop()
    assert page.value(gpu.AVAILABLE) == 0
    assert page.values(gpu.SAMPLED) == page.values(gpu.CAPACITY) == []


class TestReadings:
    """What is told of a view at a moment."""

    SAMPLE = GpuSample("0", GpuMemory(100, 0, 100, 0), 0, 0.0)

    def told(self, view: GpuView, at_seconds: float) -> dict[str, float]:
        now = Moment(unix_seconds=5_000.0, monotonic_seconds=at_seconds)
        return {r.metric.name: r.value for r in gpu_readings(view, now, interval_seconds=1.0)}

    def test_a_0_that_was_told_is_told(self) -> None:
        told = self.told(GpuView(True, (self.SAMPLE,), 100.0, 100.0), at_seconds=100.5)
        assert told[gpu.USED.name] == told[gpu.RESERVED.name] == told[gpu.UTILIZATION.name] == 0
        assert told[gpu.PROCESS_MEMORY.name] == 0
        assert told[gpu.PROCESS_MEMORY_KNOWN.name] == 1

    @pytest.mark.parametrize(("age_seconds", "is_told"), [(0.0, True), (11.0, True), (11.1, False)])
    def test_an_old_figure_is_not_told_but_its_age(self, age_seconds: float, is_told: bool) -> None:
        view = GpuView(True, (self.SAMPLE,), 100.0, 100.0, failures=2)
        told = self.told(view, at_seconds=100.0 + age_seconds)
        assert (gpu.USED.name in told) == (gpu.PROCESS_MEMORY_KNOWN.name in told) == is_told
        assert told[gpu.AVAILABLE.name] == is_told, "it answers, or no longer does"
        assert told[gpu.FAILURES.name] == 2
        assert told[gpu.SAMPLED.name] == 5_000.0 - age_seconds

    def test_a_driver_that_has_lost_a_gpu_does_not_answer_though_the_others_are_told(self) -> None:
        view = GpuView(True, (self.SAMPLE,), sampled_seconds=199.0, answered_seconds=100.0)
        told = self.told(view, at_seconds=200.0)
        assert told[gpu.AVAILABLE.name] == 0
        assert told[gpu.USED.name] == 0, "a GPU that is empty"

    def test_a_driver_that_has_never_answered_is_told_by_its_age(self) -> None:
        told = self.told(GpuView(answered_seconds=100.0), at_seconds=160.0)
        assert told == {
            gpu.AVAILABLE.name: 0,
            gpu.FAILURES.name: 0,
            gpu.SAMPLED.name: 5_000.0 - 60.0,
        }

    def test_metrics_with_two_gpus_follow_each_other(self) -> None:
        samples = (self.SAMPLE, GpuSample("1", None, None, 0.5), GpuSample("2", None, 7, None))
        view = GpuView(True, samples, 100.0, 100.0)
        readings = list(gpu_readings(view, Moment(5_000.0, 100.0), 1.0))
        names = [reading.metric.name for reading in readings]
        assert sorted(names, key=names.index) == names
        assert len({(r.metric.name, r.labels) for r in readings}) == len(readings)
        of_1 = {r.metric: r.value for r in readings if r.labels == ("1",)}
        assert of_1 == {gpu.PROCESS_MEMORY_KNOWN: 0, gpu.UTILIZATION: 0.5}
