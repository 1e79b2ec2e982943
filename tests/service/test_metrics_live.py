"""Metrics of a real server with a real model, scraped while it works and its engine is killed."""

from __future__ import annotations

import asyncio
import random
import time

import grpc
import pytest
from live_server import LiveServer, serve
from metrics_invariants import assert_adds_up
from metrics_page import OPENMETRICS, TEXT, MetricsPage, scrape

from service.api.gen.plimsoll.v1 import inference_pb2
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.telemetry.catalog import METRICS, Kind, cache, memory, requests, server, tenants

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

STREAMS = 24
LEFT_BY_THEIR_CLIENT = 6


def request(number: int, rng: random.Random) -> inference_pb2.GenerateStreamRequest:
    made = inference_pb2.GenerateStreamRequest(text=f"{number} things to carry to sea:")
    made.options.stopping.max_tokens = rng.choice((8, 24, 40))
    if number < LEFT_BY_THEIR_CLIENT:  # after the engine's end
        made.options.stopping.min_tokens = made.options.stopping.max_tokens = 400
    made.options.sampling.candidate_count = rng.choice((1, 1, 2))
    made.options.output.token_ids = True
    return made


async def one_stream(stub: InferenceServiceStub, number: int, replaced: asyncio.Event) -> int:
    """Reads a stream, or leaves it once `replaced` is set; answers the tokens that came."""
    rng = random.Random(number)
    metadata = (("x-tenant-id", f"tenant-{number % 3}"),)
    call = stub.GenerateStream(request(number, rng), metadata=metadata, timeout=800)
    tokens = 0
    async for message in call:
        tokens += sum(len(delta.token_ids) for delta in message.deltas.deltas)
        if number < LEFT_BY_THEIR_CLIENT and replaced.is_set() and tokens > 4:
            call.cancel()
            return tokens
    return tokens


async def scrape_until(live: LiveServer, done: asyncio.Event) -> list[MetricsPage]:
    """Pages in both formats, as fast as they come, until `done`."""
    pages = []
    while not done.is_set():
        pages.append(await scrape(live.metrics_address, (TEXT, OPENMETRICS)[len(pages) % 2]))
        await asyncio.sleep(0.2)
    return pages


async def until_idle(live: LiveServer) -> MetricsPage:
    async with asyncio.timeout(200):
        page = await scrape(live.metrics_address)
        while page.total(requests.LIVE) or page.total(cache.BLOCKS, state="active"):
            await asyncio.sleep(0.2)
            page = await scrape(live.metrics_address)
    return page


async def test_metrics_of_a_real_server() -> None:
    began_seconds = time.time()
    # Which requests are admitted first is chance; tenants with a share have their names before.
    flags = ("--tenant-shares", "tenant-0=0-100,tenant-1=0-100", "--metrics-tenants", "3")
    with serve("--kv-blocks", "300", "--vllm-metrics", *flags) as live:
        before = await scrape(live.metrics_address, OPENMETRICS)
        async with grpc.aio.insecure_channel(live.address) as channel:
            stub = InferenceServiceStub(channel)
            replaced, done = asyncio.Event(), asyncio.Event()
            scraping = asyncio.create_task(scrape_until(live, done))
            streams = [asyncio.create_task(one_stream(stub, i, replaced)) for i in range(STREAMS)]
            await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
            old_pid = live.engine.pid
            live.engine.kill()
            await asyncio.to_thread(live.wait_for_new_engine, old_pid)
            replaced.set()
            tokens = await asyncio.gather(*streams)
            done.set()
            pages = [before, *await scraping]
        pages.append(after := await until_idle(live))

    check_the_end(after, sum(tokens))
    check_a_page(after, began_seconds)
    assert len(pages) > 5
    check_counters_only_grow(pages)
    assert any(page.total(requests.LIVE) for page in pages[1:-1])
    assert before.total(requests.FINISHED) == before.value(requests.ADMITTED) == 0
    lags = {
        s.labels["le"]: s.value for s in after.samples if s.name.endswith("loop_lag_seconds_bucket")
    }
    print(f"\n{len(pages)} pages; event loop late by at most, s: count {lags}")


def check_the_end(page: MetricsPage, tokens_read: int) -> None:
    assert_adds_up(page)
    assert page.value(requests.ADMITTED) == STREAMS
    assert page.value(requests.FINISHED, outcome="cancelled") == LEFT_BY_THEIR_CLIENT
    assert page.value(requests.FINISHED, outcome="completed") == STREAMS - LEFT_BY_THEIR_CLIENT
    assert page.value(requests.FIRST_TOKEN, "_count") == STREAMS
    assert page.value(requests.OUTPUT_TOKENS) >= tokens_read
    assert page.value(requests.RESUBMITTED) > 0
    assert page.value(server.RESTARTS) == 1
    assert page.value(server.COMPUTED_TOKENS, phase="decode") >= tokens_read
    assert page.value(server.MODEL_INFO, device="cpu") == 1
    assert page.value(tenants.ADMITTED, tenant="tenant-0") == STREAMS / 3
    assert page.value(tenants.ADMITTED, tenant="other") == STREAMS / 3
    assert page.values(tenants.ADMITTED, tenant="tenant-2") == []
    bounded = page.values(METRICS["vllm:time_to_first_token_seconds"], "_bucket")
    assert bounded == page.values(requests.FIRST_TOKEN, "_bucket")


def check_a_page(page: MetricsPage, began_seconds: float) -> None:
    assert page.total(cache.BLOCKS) == page.value(cache.CAPACITY) > 0
    owned_bytes = page.total(memory.OWNED) + page.value(memory.FREE)
    assert owned_bytes == page.value(memory.CAPACITY)
    assert page.value(memory.OWNED, owner="weights") > 0
    assert page.value(memory.DEMAND) > 0
    assert page.value(memory.SAMPLED) > page.value(server.STARTED) > began_seconds - 1


def check_counters_only_grow(pages: list[MetricsPage]) -> None:
    names = {m.name for m in METRICS.values() if m.kind is not Kind.GAUGE}
    seen: dict[object, float] = {}
    for page in pages:
        for key, value in page.series.items():
            name = key[0]
            for suffix in ("_bucket", "_count", "_sum"):
                name = name if name in names else name.removesuffix(suffix)
            if name in names:
                assert value >= seen.get(key, 0.0), key
                seen[key] = value
