"""How long `plimsoll serve` takes to start, and what memory its front needs.

    python tests/bench/start_up.py

Prints medians over several starts: until the ports are open and liveness says SERVING, until
the model takes requests, and the resident memory of the front (private and shared) when ready
and after some load. The first start of a machine reads everything from the disk; give
`--rounds 1` twice to see it.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import statistics
import subprocess
import sys
import time

import grpc
import psutil
from grpc_health.v1 import health_pb2, health_pb2_grpc

from service.client import GenerationOptions, PlimsollClient

READINESS = "plimsoll.v1.InferenceService"
LIMIT_SECONDS = 120.0
LIMITS = {
    "ports open, alive (s)": 1.0,
    "model ready (s)": 15.0,
    "front memory, ready (MB)": 150.0,
    "front memory, after load (MB)": 150.0,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="starts (default 3)")
    parser.add_argument("--requests", type=int, default=64, help="of the load (default 64)")
    parser.add_argument("serve", nargs="*", help="flags of `plimsoll serve`, after --")
    arguments = parser.parse_args()
    rounds = [start_once(arguments.requests, arguments.serve) for _ in range(arguments.rounds)]
    print(f"medians of {arguments.rounds} starts, load {os.getloadavg()[0]:.1f}")
    for (name, limit), figures in zip(LIMITS.items(), zip(*rounds, strict=True), strict=True):
        median = statistics.median(figures)
        print(
            f"  {name:<30}{median:>8.2f}   limit {limit:g}   {'ok' if median < limit else 'MISSED'}"
        )


def start_once(requests: int, flags: list[str]) -> tuple[float, float, float, float]:
    """Starts, loads and stops a server; answers the figures in the order of LIMITS."""
    port, admin_port = free_port(), free_port()
    command = [sys.executable, "-m", "service.cli", "serve", "--log-level", "warning"]
    command += ["--port", str(port), "--admin-port", str(admin_port)]
    command += ["--metrics-port", "0", *flags]
    began = time.perf_counter()
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for_port(port)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel)
            wait_serving(health, "")
            alive = time.perf_counter() - began
            wait_serving(health, READINESS)
            ready = time.perf_counter() - began
        front = psutil.Process(server.pid)
        idle = front.memory_info().rss / 1e6
        asyncio.run(load(f"127.0.0.1:{port}", requests))
        return alive, ready, idle, front.memory_info().rss / 1e6
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number: int = sock.getsockname()[1]
        return number


def wait_for_port(port: int) -> None:
    """Without gRPC, whose channel would pause between attempts to connect."""
    give_up = time.monotonic() + LIMIT_SECONDS
    while True:
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) == 0:
                return
        if time.monotonic() > give_up:
            raise SystemExit(f"port {port} is not open after {LIMIT_SECONDS} s")
        time.sleep(0.005)


def wait_serving(health: health_pb2_grpc.HealthStub, service: str) -> None:
    request = health_pb2.HealthCheckRequest(service=service)
    for answer in health.Watch(request, timeout=LIMIT_SECONDS):
        if answer.status == health_pb2.HealthCheckResponse.SERVING:
            return


async def load(address: str, requests: int) -> None:
    """Some text in, some text out, all at once."""
    options = GenerationOptions(max_tokens=8, temperature=0.0)
    async with PlimsollClient(address) as client:
        texts = (f"{number} ships went to sea. " * 8 for number in range(requests))
        await asyncio.gather(*(client.generate(text, options) for text in texts))


if __name__ == "__main__":
    main()
