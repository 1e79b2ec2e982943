"""What scheduler, IPC and front add to a step, through the real server.

    python tests/bench/step_overhead.py

A client process, a front with API and gRPC, and an engine process, all real but the model: it
sleeps for a fixed time and answers logits of the real vocabulary. Prints, per number of
streams, how much longer than the model the step is as the client sees it (inter-token latency
less model time), and the CPU time of front and engine per step, which is what they take from
the cores of the model; other load of the machine hardly changes the latter.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import psutil
import uvloop
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent))

from engine_fakes import FakeBuilt, build_fake

from service.api.gen.plimsoll.v1 import inference_pb2, inference_pb2_grpc
from service.api.server import Addresses, StopSignals, serve_front
from service.config import EngineSettings, ServeSettings
from service.engine.entry import main as engine_main
from service.engine.messages import Loading
from service.engine.runner import StepBatch
from service.front.front import Front
from service.logs import configure_logging

VOCAB_SIZE = 49152  # of SmolLM2, whose tokenizer the front loads
ROLE, MODEL_MILLISECONDS = "PLIMSOLL_BENCH_ROLE", "PLIMSOLL_BENCH_MODEL_MILLISECONDS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500, help="steps per figure (default 500)")
    parser.add_argument("--streams", default="1,8,32", help="numbers of streams (default 1,8,32)")
    parser.add_argument("--model-milliseconds", type=float, default=10.0, help="default 10")
    arguments = parser.parse_args()
    os.environ[MODEL_MILLISECONDS] = str(arguments.model_milliseconds)
    print(f"model {arguments.model_milliseconds} ms a step; added to it, in ms:")
    print(f"{'streams':>7}{'median':>9}{'p99':>9}{'front CPU':>12}{'engine CPU':>12}{'sum':>8}")
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder, "ready")
        environment = {**os.environ, ROLE: f"front {ready}"}
        server = subprocess.Popen([sys.executable, __file__], env=environment)
        try:
            while not ready.exists():
                if server.poll() is not None:
                    raise SystemExit("the server did not start")
                time.sleep(0.05)
            for streams in map(int, arguments.streams.split(",")):
                figures = measure(ready.read_text(), server.pid, streams, arguments.steps)
                added = [ms - arguments.model_milliseconds for ms in figures.latencies]
                cpu = figures.front, figures.engine, figures.front + figures.engine
                print(
                    f"{streams:>7}{statistics.median(added):>9.2f}"
                    f"{np.percentile(added, 99):>9.2f}{cpu[0]:>12.2f}{cpu[1]:>12.2f}{cpu[2]:>8.2f}"
                    f"   load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
        finally:
            server.terminate()
            server.wait()


class Figures:
    """Milliseconds: between tokens of a stream, and of CPU per step."""

    def __init__(self, latencies: list[float], front: float, engine: float) -> None:
        self.latencies, self.front, self.engine = latencies, front, engine


def measure(address: str, front_pid: int, streams: int, steps: int) -> Figures:
    """Lets `streams` requests of `steps` tokens each run side by side."""
    front = psutil.Process(front_pid)
    (engine,) = front.children()
    asyncio.run(stream_all(address, streams, 20))
    before = cpu_seconds(front), cpu_seconds(engine)
    arrivals = asyncio.run(stream_all(address, streams, steps))
    after = cpu_seconds(front), cpu_seconds(engine)
    latencies = [
        (at - earlier) / tokens * 1e3
        for stream in arrivals
        for (earlier, _), (at, tokens) in itertools.pairwise(stream)
    ]
    front_ms, engine_ms = ((b - a) / steps * 1e3 for a, b in zip(before, after, strict=True))
    return Figures(latencies, front_ms, engine_ms)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def stream_all(address: str, streams: int, tokens: int) -> list[list[tuple[float, int]]]:
    """(seconds, tokens) of each message, per stream."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def stream(number: int) -> list[tuple[float, int]]:
            request = inference_pb2.GenerateStreamRequest(text=f"{number} ships went to sea. " * 4)
            request.options.sampling.temperature = 0.0
            request.options.stopping.max_tokens = tokens
            request.options.stopping.ignore_eos = True
            request.options.output.token_ids = True
            arrived = []
            async for message in stub.GenerateStream(request):
                if message.WhichOneof("event") == "deltas":
                    count = sum(len(delta.token_ids) for delta in message.deltas.deltas)
                    if count:
                        arrived.append((time.perf_counter(), count))
            return arrived

        return await asyncio.gather(*map(stream, range(streams)))


# --- the server ------------------------------------------------------------------


class SleepingRunner:
    """A model that takes a fixed time, without using a core, and says ever different tokens."""

    vocab_size = VOCAB_SIZE

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._logits = np.random.default_rng(0).normal(0, 3, (128, VOCAB_SIZE)).astype(np.float32)
        self._step = 0

    def forward(self, batch: StepBatch) -> NDArray[np.float32]:
        time.sleep(self._seconds)
        self._step = (self._step + 1) % 64
        return self._logits[self._step : self._step + len(batch.logit_rows)]


def build_sleeping(
    settings: EngineSettings, progress: Callable[[Loading], None], beat: Callable[[], None]
) -> FakeBuilt:
    fake = build_fake(settings, progress, beat, vocab_size=VOCAB_SIZE)
    runner = SleepingRunner(float(os.environ[MODEL_MILLISECONDS]) / 1e3)
    return replace(fake, runner=runner, max_context_tokens=8192)  # type: ignore[arg-type]


async def serve(ready_file: Path) -> None:
    settings = ServeSettings(
        engine=EngineSettings(kv_blocks=4096),
        port=0,
        admin_port=0,
        metrics_port=0,
        allow_ignore_eos=True,
        grace_seconds=0.0,
    )

    def ready(addresses: Addresses) -> None:
        part = ready_file.with_suffix(".part")
        part.write_text(addresses.inference)
        part.replace(ready_file)

    configure_logging("warning", "console")
    os.environ[ROLE] = "engine"
    front = Front(settings, engine_command=(sys.executable, __file__))
    signals = StopSignals()
    signals.install()
    await serve_front(front, settings, signals, ready)


if __name__ == "__main__":
    match os.environ.get(ROLE, "").split(maxsplit=1):
        case ["front", ready_file]:
            uvloop.run(serve(Path(ready_file)))
        case ["engine"]:
            sys.exit(engine_main(build_sleeping))
        case _:
            main()
