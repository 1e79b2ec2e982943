"""How long a scrape of /metrics takes while a server sends tokens.

    python tests/bench/metrics_latency.py [--model] [--streams 64] [--tenants 20] [--seconds 30]

A whole server in processes of its own: with the fake engine, whose steps cost next to nothing,
so that the front has as many tokens to send as it can; with --model, the real model. A third
process reads the streams. Scrapes go out at fixed times, in both formats in turn, each over a
new connection, as Prometheus does after a restart. Prints the time from the first byte sent to
the last one read, as quantiles, beside what else kept the machine busy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from api_stack import long_request
from live_server import serve
from metrics_page import OPENMETRICS, TEXT, MetricsPage
from toy_server import toy_server

from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.telemetry.catalog import requests
from service.telemetry.catalog import server as server_metrics

STREAM_TOKENS = 500


async def load(address: str, streams: int, tenants: int) -> None:
    """Reads so many streams at once, one after the other, until it is killed."""

    async def reader(number: int) -> None:
        stub = InferenceServiceStub(channel)
        metadata = (("x-tenant-id", f"tenant-{number % tenants}"),)
        while True:
            request = long_request("", STREAM_TOKENS)
            request.options.stopping.ignore_eos = False
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in stub.GenerateStream(request, metadata=metadata):
                    pass

    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.gather(*(reader(number) for number in range(streams)))


@contextlib.contextmanager
def started(arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Addresses of inference and metrics."""
    if arguments.model:
        with serve("--kv-blocks", "2000", "--vllm-metrics") as live:
            yield live.address, live.metrics_address
    else:
        with (
            tempfile.TemporaryDirectory() as folder,
            toy_server(Path(folder), "--kv-blocks", "8000") as toy,
        ):
            yield toy.address, toy.metrics_address


def scrape(address: str, accept: str) -> tuple[float, bytes]:
    """Seconds, and the page."""
    connection = http.client.HTTPConnection(address, timeout=30)
    began_seconds = time.perf_counter()
    connection.request("GET", "/metrics", headers={"Accept": accept})
    body = connection.getresponse().read()
    took_seconds = time.perf_counter() - began_seconds
    connection.close()
    return took_seconds, body


def quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def measure(arguments: argparse.Namespace, inference: str, metrics: str) -> None:
    command = [sys.executable, __file__, "--load", inference]
    command += ["--streams", str(arguments.streams), "--tenants", str(arguments.tenants)]
    client = subprocess.Popen(command)
    try:
        time.sleep(3.0)  # until all streams are under way
        pages, times = [], []
        began_seconds = time.monotonic()
        for number in range(int(arguments.seconds / arguments.every)):
            time.sleep(max(0.0, began_seconds + number * arguments.every - time.monotonic()))
            took_seconds, body = scrape(metrics, (TEXT, OPENMETRICS)[number % 2])
            times.append(took_seconds)
            pages.append(body)
        elapsed_seconds = time.monotonic() - began_seconds
    finally:
        client.kill()
        client.wait()
    report(times, pages, elapsed_seconds)


def report(times: list[float], pages: list[bytes], elapsed_seconds: float) -> None:
    whole = pages[: len(pages) - len(pages) % 2]  # the text ones are parsed, first and last
    first, last = MetricsPage.of(whole[0]), MetricsPage.of(whole[-2])
    tokens = last.value(requests.OUTPUT_TOKENS) - first.value(requests.OUTPUT_TOKENS)
    lags = {
        sample.labels["le"]: int(sample.value)
        for sample in last.samples
        if sample.name == server_metrics.LOOP_LAG.name + "_bucket"
    }
    ordered = sorted(times)
    print(
        f"{len(times)} scrapes of {len(last.series)} series, {len(pages[-1])} bytes; "
        f"{tokens / elapsed_seconds:.0f} tokens/s; load average {os.getloadavg()[0]:.1f} on "
        f"{os.cpu_count()} cores\nevent loop late by at most, s: count {lags}"
    )
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)):
        print(f"{name} {quantile(ordered, share) * 1000:7.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="store_true", help="the real model, not the fake engine")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=1.0, metavar="SECONDS")
    parser.add_argument("--load", metavar="ADDRESS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load is not None:
        asyncio.run(load(arguments.load, arguments.streams, arguments.tenants))
        return
    with started(arguments) as (inference, metrics):
        measure(arguments, inference, metrics)


if __name__ == "__main__":
    main()
