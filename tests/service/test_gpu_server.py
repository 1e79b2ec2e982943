"""GPUs of a whole server in a process of its own, which finds the driver as servers do."""

from __future__ import annotations

import asyncio
import ctypes.util
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from metrics_page import MetricsPage, scrape
from nvml_stub import COMPILER, GIB, NvmlStub, StubGpu
from toy_server import ToyServer, toy_server

from service.telemetry.catalog import gpu

LOOK_OFTEN = ("--gpu-sample-seconds", "0.05")


async def page_with(toy: ToyServer, wanted: Callable[[MetricsPage], bool]) -> MetricsPage:
    async with asyncio.timeout(30):
        while True:
            page = await scrape(toy.metrics_address)
            if wanted(page):
                return page
            await asyncio.sleep(0.05)


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
async def test_figures_of_a_server_until_its_driver_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stub = NvmlStub(tmp_path)
    stub.tell(StubGpu(used_bytes=10 * GIB))
    with monkeypatch.context() as patch:
        for name, value in stub.environment.items():
            patch.setenv(name, value)
        with toy_server(tmp_path, *LOOK_OFTEN) as toy:
            page = await page_with(toy, lambda page: page.values(gpu.USED) == [10 * GIB])
            assert page.value(gpu.AVAILABLE) == 1
            assert page.value(gpu.PROCESS_MEMORY_KNOWN, gpu="0") == 0

            (engine,) = psutil.Process(toy.process.pid).children()
            processes = {engine.pid: 30 * GIB, toy.process.pid: GIB, 1: 9 * GIB}
            stub.tell(StubGpu(used_bytes=40 * GIB, processes=processes))
            page = await page_with(toy, lambda page: page.values(gpu.USED) == [40 * GIB])
            assert page.value(gpu.PROCESS_MEMORY, gpu="0") == 31 * GIB

            stub.tell(StubGpu(used_bytes=79 * GIB), hangs=["nvmlDeviceGetMemoryInfo_v2"])
            seen: list[float] = []

            def has_hung(page: MetricsPage) -> bool:
                seen.append(page.value(gpu.SAMPLED))
                return len(seen) > 10 and len(set(seen[-10:])) == 1

            page = await page_with(toy, has_hung)
            assert page.values(gpu.USED) in ([40 * GIB], []), "the old one, until it is too old"
            toy.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(toy.process.wait, 30) == 0


async def test_a_machine_without_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    if ctypes.util.find_library("nvidia-ml"):
        pytest.skip("this machine has a driver")
    with toy_server(tmp_path, *LOOK_OFTEN) as toy:
        page = await page_with(toy, lambda page: page.values(gpu.SAMPLED) == [])
    assert page.value(gpu.AVAILABLE) == 0
    assert page.value(gpu.FAILURES) == 0
    assert {s.name for s in page.samples if s.name.startswith("plimsoll_gpu")} == {
        gpu.FAILURES.name
    }
