"""What a thousand streams cost while nothing happens on them.

    python tests/bench/idle_streams.py [--streams 1000] [--connections 2] [--seconds 10]

A whole front process (gRPC, journal, supervisor) with the scripted engine: half of the
streams wait for admission, half have started and wait for a token. Prints the CPU time of
the front as a share of one core, and its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import psutil
import uvloop

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS), str(TESTS.parent)]

from front_fakes import ENGINE, ByteTokenizer
from scripted_engine import HOLD, WAIT

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.api.server import Addresses, StopSignals, serve_front
from service.config import EngineSettings, ServeSettings
from service.front.front import Front
from service.logs import configure_logging

OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


async def serve(streams: int) -> None:
    """The server; says its address on standard output, and stops at SIGTERM."""
    configure_logging("error", "json")
    settings = ServeSettings(
        engine=EngineSettings(model="scripted"),
        port=0,
        admin_port=0,
        metrics_port=0,
        max_live_requests=2 * streams,
        max_waiting_requests=2 * streams,
        grace_seconds=0.0,
    )
    command = (sys.executable, str(ENGINE))
    front = Front(settings, engine_command=command, tokenizer=ByteTokenizer())  # type: ignore[arg-type]
    signals = StopSignals()
    signals.install()

    def ready(addresses: Addresses) -> None:
        print(addresses.inference, flush=True)

    await serve_front(front, settings, signals, ready)


async def wait_on(channels: Sequence[grpc.aio.Channel], streams: int) -> list[object]:
    """Opens the streams and reads what there is to read."""
    calls: list[object] = []
    for number in range(streams):
        stub = InferenceServiceStub(channels[number % len(channels)])
        mode = HOLD if number % 2 else WAIT
        call = stub.GenerateStream(pb.GenerateStreamRequest(token_ids=pb.TokenIds(ids=[mode])))
        if mode == HOLD:
            assert (await call.read()).HasField("start")
        calls.append(call)
    return calls


async def measure(address: str, process: psutil.Process, arguments: argparse.Namespace) -> None:
    channels = [
        grpc.aio.insecure_channel(address, OWN_CONNECTION) for _ in range(arguments.connections)
    ]
    try:
        before_bytes = process.memory_info().rss
        calls = await wait_on(channels, arguments.streams)
        await asyncio.sleep(2.0)
        before, began = process.cpu_times(), time.monotonic()
        await asyncio.sleep(arguments.seconds)
        after, seconds = process.cpu_times(), time.monotonic() - began
        used_seconds = after.user + after.system - before.user - before.system
        grown_bytes = process.memory_info().rss - before_bytes
        print(
            f"{len(calls)} idle streams on {len(channels)} connections: "
            f"{abs(100 * used_seconds / seconds):.2f} % of a core over {seconds:.0f} s, "
            f"{grown_bytes / len(calls) / 1024:.1f} KiB a stream"
        )
    finally:
        for channel in channels:
            await channel.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        uvloop.run(serve(arguments.streams))
        return
    command = [sys.executable, __file__, "--serve", "--streams", str(arguments.streams)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            asyncio.run(measure(address, psutil.Process(server.pid), arguments))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
