"""The whole server against `generate` of transformers.

    python tests/bench/server_vs_transformers.py

One run, the same weights (SmolLM2-135M), bfloat16, the same number of threads and the same
OpenMP settings. `plimsoll serve` runs as a process and is driven over gRPC; transformers
(sdpa attention) runs in this process. They take turns, so that other load of the machine
hits both, and only one works at a time. Medians over the rounds are compared.

Decode is timed after the first token: on the server from the moment when every stream has its
first token until the first one ends, in transformers from the first step to the last. Neither
includes the prefill. Before the rounds each stream's own prompt is sent once, so that a round
finds it in the prefix cache (blocks of its own, no sharing between streams); `generate` is
given a DynamicCache filled with random keys and values, since its prefill takes minutes on
CPUs without bfloat16 instructions. Time to first token is a figure of its own: one stream,
a prompt that no cache knows, on both sides.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from service.engine.openmp import wait_politely

wait_politely()  # as the engine does, for both sides
sys.path.insert(0, str(Path(__file__).parent.parent))

import grpc
import numpy as np
import torch
from live_server import serve
from step_cpu import load_oracle
from transformers import DynamicCache, LlamaForCausalLM, StoppingCriteria

from service.api.gen.plimsoll.v1 import inference_pb2, inference_pb2_grpc

KV_BLOCKS = 1600  # 32 streams of 512 + 64 tokens, and room for what the cache keeps


@dataclass(frozen=True, slots=True)
class Case:
    """Streams of one context length, the tokens each adds, and the ratio to reach."""

    streams: int
    context: int
    new_tokens: int
    bar: float


CASES = (
    Case(1, 32, 25, 1.0),
    Case(1, 512, 25, 1.0),
    Case(8, 512, 13, 1.5),
    Case(32, 32, 9, 1.0),
    Case(32, 512, 9, 1.0),
)
TTFT_CONTEXTS = (32, 512)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side per case")
    parser.add_argument("--ttft-rounds", type=int, default=1, help="0 leaves TTFT out")
    parser.add_argument("--cases", default="", help="only these, as in 1x32,8x512")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    wanted = set(arguments.cases.split(",")) - {""}
    cases = [c for c in CASES if not wanted or f"{c.streams}x{c.context}" in wanted]
    model = load_oracle(torch.bfloat16)
    flags = ("--dtype", "bfloat16", "--threads", str(arguments.threads))
    with serve(*flags, "--kv-blocks", str(KV_BLOCKS), "--allow-ignore-eos") as server:
        print(f"bfloat16, {arguments.threads} threads, medians of {arguments.rounds} rounds")
        for case in cases:
            compare_decode(server.address, model, case, arguments.rounds)
        for context in TTFT_CONTEXTS if arguments.ttft_rounds else ():
            compare_ttft(server.address, model, context, arguments.ttft_rounds)


def compare_decode(address: str, model: LlamaForCausalLM, case: Case, rounds: int) -> None:
    """Prints tokens per second of both sides and their ratio."""
    prompts = [prompt(case.context) for _ in range(case.streams)]
    asyncio.run(stream_all(address, prompts, 1))
    ours, theirs = take_turns(
        lambda: asyncio.run(stream_all(address, prompts, case.new_tokens)).tokens_per_second(),
        lambda: generate_tokens_per_second(model, case),
        rounds,
    )
    ratio = ours / theirs
    print(
        f"decode {case.streams} x {case.context:<4} server {ours:7.1f} tok/s"
        f"   transformers {theirs:7.1f} tok/s   {ratio:5.2f} x (bar {case.bar} x)"
        f"   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def compare_ttft(address: str, model: LlamaForCausalLM, context: int, rounds: int) -> None:
    """Prints seconds from sending an unknown prompt to the first token, of both sides."""
    ours, theirs = take_turns(
        lambda: asyncio.run(stream_all(address, [prompt(context)], 1)).ttft_seconds(),
        lambda: generate_ttft_seconds(model, context),
        rounds,
    )
    print(
        f"TTFT   1 x {context:<4} server {ours:7.3f} s       transformers {theirs:7.3f} s"
        f"       {theirs / ours:5.2f} x   load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


def take_turns(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> tuple[float, float]:
    """Medians of both."""
    pairs = [(ours(), theirs()) for _ in range(rounds)]
    return statistics.median(p[0] for p in pairs), statistics.median(p[1] for p in pairs)


_seeds = itertools.count()


def prompt(tokens: int) -> list[int]:
    """Random ids that no other prompt of the run begins with."""
    ids: list[int] = np.random.default_rng(next(_seeds)).integers(1000, 40000, tokens).tolist()
    return ids


# --- the server ------------------------------------------------------------------


@dataclass(slots=True)
class Arrivals:
    """When tokens came: per stream (seconds, tokens) of each message."""

    sent_seconds: float
    streams: list[list[tuple[float, int]]] = field(default_factory=list)

    def ttft_seconds(self) -> float:
        return min(stream[0][0] for stream in self.streams) - self.sent_seconds

    def tokens_per_second(self) -> float:
        """Of all streams together, while all of them decode."""
        start = max(stream[0][0] for stream in self.streams)
        end = min(stream[-1][0] for stream in self.streams)
        tokens = sum(n for stream in self.streams for at, n in stream if start < at <= end)
        return tokens / (end - start)


async def stream_all(address: str, prompts: list[list[int]], new_tokens: int) -> Arrivals:
    """Streams all prompts at once, greedily, without end-of-sequence."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)

        async def stream(ids: list[int]) -> list[tuple[float, int]]:
            request = inference_pb2.GenerateStreamRequest()
            request.token_ids.ids.extend(ids)
            request.options.sampling.temperature = 0.0
            request.options.stopping.max_tokens = new_tokens
            request.options.stopping.ignore_eos = True
            request.options.output.token_ids = True
            arrived = []
            async for message in stub.GenerateStream(request):
                if message.WhichOneof("event") == "deltas":
                    tokens = sum(len(delta.token_ids) for delta in message.deltas.deltas)
                    arrived.append((time.perf_counter(), tokens))
            return arrived

        await channel.channel_ready()
        arrivals = Arrivals(time.perf_counter())
        arrivals.streams = await asyncio.gather(*map(stream, prompts))
        return arrivals


# --- transformers ----------------------------------------------------------------


class StepTimes(StoppingCriteria):
    """Notes when each new token is there; never stops anything."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def __call__(self, input_ids: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        self.seconds.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def generate_tokens_per_second(model: LlamaForCausalLM, case: Case) -> float:
    config = model.config
    shape = (case.streams, config.num_key_value_heads, case.context - 1, config.head_dim)
    cache = DynamicCache(config=config)
    for layer in range(config.num_hidden_layers):
        cache.update(*(torch.randn(shape, dtype=model.dtype) for _ in range(2)), layer)
    ids = torch.tensor([prompt(case.context) for _ in range(case.streams)])
    seconds = generate(model, ids, case.new_tokens, cache)
    return case.streams * (case.new_tokens - 1) / (seconds[-1] - seconds[0])


def generate_ttft_seconds(model: LlamaForCausalLM, context: int) -> float:
    ids = torch.tensor([prompt(context)])
    began = time.perf_counter()
    return generate(model, ids, 1, None)[0] - began


def generate(
    model: LlamaForCausalLM, ids: torch.Tensor, new_tokens: int, cache: DynamicCache | None
) -> list[float]:
    """Runs `generate` greedily; answers when each token was there."""
    times = StepTimes()
    with torch.inference_mode():
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            cache=cache,
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=[times],
        )
    return times.seconds


if __name__ == "__main__":
    main()
