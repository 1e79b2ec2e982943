"""Metrics of a whole server, asked for over its port."""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
from pathlib import Path

import grpc
import psutil
import pytest
from api_fakes import FakeFront
from api_stack import long_request, read_all, stack
from engine_deaths import kill_engine, until_running_again
from metrics_page import OPENMETRICS, MetricsPage, scrape
from paced_engine import Pace, paced_command
from toy_server import toy_server

from service.api.gen.plimsoll.v1 import engine_admin_pb2
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.ports import BindError
from service.api.server import StopSignals, serve_front
from service.config import ServeSettings
from service.telemetry.catalog import METRICS, Kind, admin, cache, memory, requests, server
from service.telemetry.metrics import Metrics

STREAMS = 12


async def until_idle(address: str) -> MetricsPage:
    """The first page without live requests and held blocks."""
    async with asyncio.timeout(120):
        while True:
            page = await scrape(address)
            held = page.total(cache.BLOCKS, state="active") + page.total(
                cache.BLOCKS, state="reserved"
            )
            if not page.total(requests.LIVE) + page.total(server.SEQUENCES) + held:
                return page
            await asyncio.sleep(0.1)


async def test_gauges_are_fresh_after_all_were_aborted() -> None:
    async with stack() as running:
        calls = [running.stub.GenerateStream(long_request(f"r{i}", 4000)) for i in range(STREAMS)]
        for call in calls:
            while not (await call.read()).HasField("deltas"):
                pass
        busy = await scrape(running.metrics_address, OPENMETRICS)
        assert busy.value(requests.LIVE, state="running") == STREAMS
        assert busy.total(cache.BLOCKS, state="active") > 0
        assert busy.total(cache.BLOCKS) == busy.value(cache.CAPACITY)
        for call in calls:
            call.cancel()
        idle = await until_idle(running.metrics_address)
    assert idle.value(requests.FINISHED, outcome="cancelled") == STREAMS
    assert idle.total(requests.FINISHED) == idle.value(requests.ADMITTED) == STREAMS
    assert idle.value(requests.FIRST_TOKEN, "_count") == STREAMS


async def test_counters_do_not_fall_when_the_engine_dies(tmp_path: Path) -> None:
    async with stack(command=paced_command(tmp_path), vllm_metrics=True) as running:
        pages = [await scrape(running.metrics_address)]
        for _ in range(2):
            pace = Pace(tmp_path)
            calls = [running.stub.GenerateStream(long_request("", 300)) for _ in range(4)]
            for call in calls:
                await call.read()
            await until_running_again(running.front, kill_engine(running.front))
            pace.let_go()
            await asyncio.gather(*(read_all(call) for call in calls))
            pages.append(await until_idle(running.metrics_address))
    counters = {
        sample.name
        for family in pages[0].families
        if family.type in (Kind.COUNTER.value, Kind.HISTOGRAM.value)
        for sample in family.samples
    }
    for before, after in itertools.pairwise(pages):
        for key, value in before.series.items():
            assert key[0] not in counters or after.series[key] >= value, key
    assert pages[-1].value(server.RESTARTS) == 2
    assert pages[-1].value(requests.RESUBMITTED) == 8
    assert pages[-1].value(requests.FINISHED, outcome="completed") == 8
    assert pages[-1].value(METRICS["vllm:generation_tokens_total"]) == 8 * 300


async def test_orders_of_operators_are_counted_and_what_is_in_force_is_told() -> None:
    async with stack(kv_blocks=200) as running:
        pages = [await scrape(running.metrics_address)]
        reach = pages[0].value(cache.REACH)
        half = int(reach // 2)
        await running.admin.SetMemoryUtilization(
            engine_admin_pb2.SetMemoryUtilizationRequest(total_blocks=half)
        )
        await running.admin.FlushCache(engine_admin_pb2.FlushCacheRequest())
        for _ in range(2):
            await running.admin.Drain(engine_admin_pb2.DrainRequest())
            await running.admin.Resume(engine_admin_pb2.ResumeRequest())
        with pytest.raises(grpc.aio.AioRpcError):  # faults are not allowed
            await running.admin.InjectFaults(engine_admin_pb2.InjectFaultsRequest())
        async with asyncio.timeout(120):
            while pages[-1].values(cache.CAPACITY) != [half]:
                await asyncio.sleep(0.1)
                pages.append(await scrape(running.metrics_address))
    assert pages[0].total(admin.ACTIONS) == 0
    (label,) = admin.ACTIONS.labels
    counts = {a: pages[-1].value(admin.ACTIONS, action=a) for a in label.values or ()}
    assert counts == {
        "set_memory_utilization": 1,
        "flush": 1,
        "drain": 2,
        "resume": 2,
        "inject_faults": 0,
    }
    assert pages[-1].value(admin.MEMORY_UTILIZATION) == half / reach


async def test_a_server_that_starts_tells_its_counters() -> None:
    front = FakeFront()
    front.engine, front.model = None, None
    # Nobody else listens at this address: when its port is free again it stays free.
    settings = ServeSettings(metrics_host="127.0.0.2", metrics_port=0)
    metrics = Metrics(front, settings)  # type: ignore[arg-type]
    await metrics.start()
    try:
        page = await scrape(metrics.address)
    finally:
        await metrics.stop()
    assert page.value(server.STEPS) == 0
    assert page.value(memory.OOM_RUNGS, rung="fail") == 0
    assert page.values(memory.FREE) == []
    assert page.values(server.MODEL_INFO) == []
    with pytest.raises(OSError):
        await scrape(metrics.address)


async def test_a_metrics_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ServeSettings(port=0, admin_port=0, metrics_port=port)
        with pytest.raises(BindError, match=f"metrics_port: cannot listen on 127.0.0.1:{port}"):
            await serve_front(FakeFront(), settings, StopSignals())  # type: ignore[arg-type]


async def test_the_host_of_the_metrics_can_be_another() -> None:
    settings = ServeSettings(host="127.0.0.1", metrics_host="127.0.0.2", metrics_port=0)
    metrics = Metrics(FakeFront(), settings)  # type: ignore[arg-type]
    await metrics.start()
    try:
        assert metrics.address.startswith("127.0.0.2:")
        assert (await scrape(metrics.address)).total(server.STATE) == 1
    finally:
        await metrics.stop()


async def test_a_draining_server_is_still_seen(tmp_path: Path) -> None:
    """In a process of its own, on the event loop that servers run on."""
    Pace(tmp_path)
    with toy_server(tmp_path, "--grace-seconds", "600", "--paced-in", str(tmp_path)) as toy:
        async with grpc.aio.insecure_channel(toy.address) as channel:
            call = InferenceServiceStub(channel).GenerateStream(long_request("r", 2000))
            await call.read()
            psutil.Process(toy.process.pid).send_signal(signal.SIGTERM)
            async with asyncio.timeout(120):
                page = await scrape(toy.metrics_address)
                while not page.value(server.STATE, state="draining"):
                    await asyncio.sleep(0.05)
                    page = await scrape(toy.metrics_address)
            assert page.value(requests.LIVE, state="running") == 1
            call.cancel()
        assert await asyncio.to_thread(toy.process.wait, 120) == 0
