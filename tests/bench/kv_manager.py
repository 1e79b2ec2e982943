"""CPU time and memory of KV cache managers alone: no model, and no memory behind the blocks.

    python tests/bench/kv_manager.py [--requests 10000] [--only NAME]

The trace: 10,000 requests, each a Zipf(0.9) choice among 200 shared prefixes of 512 to 1,536
tokens and a unique suffix of as many; 32 output tokens, 256 running, 100,000 blocks of 16 tokens.
Every subject of `kv_subjects.py` runs it in a process of its own, one after the other. Figures
are CPU time of the thread, the cost of the clock taken off:

    prepare .. free   us a request; append and commit_step us a token, measured by the step
    sum               us a request, with all of its output tokens
    evict             us to obtain one block, median, from a pool full of one-block leaves
    memory            bytes of resident memory for a cached block of 16 tokens, in a pool full of
                      one-block leaves and in one full of prompts of 128 blocks
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from kv_subjects import SUBJECTS, Ours, Subject

BLOCK_TOKENS = 16
NUM_BLOCKS = 100_000
RUNNING = 256
OUTPUT_TOKENS = 32
REQUEST_PHASES = ("prepare", "match", "allocate", "commit", "free")
TOKEN_PHASES = ("append", "commit_step")
LEAVES = (1_000, 10_000, 40_000, 1_000_000)
# Leaves and evictions that a subject is asked for where more would take minutes.
MODEST = {
    "SGLang RadixCache": (40_000, 20),
    "vLLM KVCacheManager": (40_000, 200),
    "ours (python)": (40_000, 200),
}
EVICTIONS = 2_000
MEMORY_BLOCKS = 1_000_000


def clock_cost_ns() -> float:
    """What a pair of readings of the clock costs."""
    return statistics.median(-time.thread_time_ns() + time.thread_time_ns() for _ in range(2_000))


class Timer:
    """Nanoseconds of CPU by name."""

    def __init__(self) -> None:
        self.samples: dict[str, list[float]] = {}
        self._cost_ns = clock_cost_ns()

    def __call__(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.thread_time_ns()
        result = function(*arguments)
        taken = time.thread_time_ns() - start - self._cost_ns
        self.samples.setdefault(name, []).append(taken)
        return result


def prompts(count: int) -> Iterator[list[int]]:
    """The trace; the same for every subject."""
    rng = np.random.default_rng(0)
    prefixes = [rng.integers(0, 32_000, rng.integers(512, 1537)).tolist() for _ in range(200)]
    weights = 1.0 / np.arange(1, 201) ** 0.9
    for choice in rng.choice(200, count, p=weights / weights.sum()):
        yield prefixes[choice] + rng.integers(0, 32_000, rng.integers(512, 1537)).tolist()


def replay(subject: Subject, requests: int, timer: Timer) -> float:
    """Keeps RUNNING requests live, all of which get a token per step. Answers the hit rate."""
    waiting = enumerate(prompts(requests))
    live: list[tuple[Any, int, int]] = []  # handle, tokens, step of its last one
    hits = tokens = step = 0
    token_of = np.random.default_rng(1).integers(0, 32_000, 100_000).tolist()
    more = True
    while more or live:
        while more and len(live) < RUNNING:
            number, prompt = next(waiting, (-1, []))
            if number < 0:
                more = False
                break
            handle = timer("prepare", subject.prepare, number, prompt)
            hits += timer("match", subject.match, handle)
            timer("allocate", subject.allocate, handle)
            timer("commit", subject.commit, handle)
            tokens += len(prompt)
            # Not all of the first batch end together, nor would they in a service.
            last = step + OUTPUT_TOKENS - (number % 8 if step == 0 else 0)
            live.append((handle, len(prompt), last))
        step += 1
        live = [(handle, length + 1, last) for handle, length, last in live]
        handles = [handle for handle, _, _ in live]
        first = step * RUNNING % 90_000
        timer("append", subject.append, handles, token_of[first : first + len(handles)])
        timer("commit_step", subject.commit_step, handles, [length for _, length, _ in live])
        for phase in TOKEN_PHASES:
            timer.samples[phase][-1] /= max(1, len(handles))
        for handle in [handle for handle, _, last in live if last == step]:
            timer("free", subject.free, handle)
        live = [entry for entry in live if entry[2] != step]
    return hits / tokens


def fill(subject: Subject, blocks: int, prompt_blocks: int) -> None:
    """Caches `blocks` blocks, in prompts of `prompt_blocks` that have nothing in common."""
    rng = np.random.default_rng(2)
    for number in range(blocks // prompt_blocks):
        prompt = rng.integers(0, 2**30, prompt_blocks * BLOCK_TOKENS).tolist()
        handle = subject.prepare(number, prompt)
        subject.match(handle)
        subject.allocate(handle)
        subject.commit(handle)
        subject.free(handle)


def evict_us(create: type[Subject], leaves: int, evictions: int) -> float:
    """Median time to obtain a block when every block of the pool is a cached leaf."""
    subject, timer = create(leaves, BLOCK_TOKENS, RUNNING), Timer()
    fill(subject, leaves, 1)
    for number in range(-8, min(evictions, leaves // 2)):
        timer("warm" if number < 0 else "evict", subject.obtain_block())
    return statistics.median(timer.samples["evict"]) / 1000


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def memory_per_block(create: type[Subject], prompt_blocks: int, blocks: int) -> float:
    """Resident bytes that a pool full of cached blocks takes, by the block."""
    fill(create(1_000, BLOCK_TOKENS, RUNNING), 1_000, 1)  # loads what is loaded once
    gc.collect()
    before = resident_bytes()
    subject = create(blocks, BLOCK_TOKENS, RUNNING)
    fill(subject, blocks, prompt_blocks)
    gc.collect()
    return (resident_bytes() - before) / blocks


def measure(name: str, part: str, requests: int) -> dict[str, float | int]:
    """One part of the figures of one subject, in this process."""
    create = SUBJECTS[name]
    leaves, evictions = MODEST.get(name, (max(LEAVES), EVICTIONS))
    if part == "evict":
        return {f"evict of {n:,}": evict_us(create, n, evictions) for n in LEAVES if n <= leaves}
    if part.startswith("memory"):
        blocks, prompt_blocks = MEMORY_BLOCKS, int(part.split()[1])
        return {part: memory_per_block(create, prompt_blocks, blocks - blocks % prompt_blocks)}
    timer = Timer()
    subject = create(NUM_BLOCKS, BLOCK_TOKENS, RUNNING)
    gc.freeze()
    hit_rate = replay(subject, requests, timer)
    figures: dict[str, float | int] = {
        phase: statistics.fmean(timer.samples[phase]) / 1000
        for phase in REQUEST_PHASES + TOKEN_PHASES
    }
    total = sum(
        figures[phase] * (OUTPUT_TOKENS if phase in TOKEN_PHASES else 1) for phase in figures
    )
    return figures | {"sum": total, "hit %": hit_rate * 100, "leaked": subject.leaked_blocks()}


def main() -> None:
    """Prints a line for every subject."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000, help="length of the trace")
    parser.add_argument("--only", choices=SUBJECTS, help="measure one subject")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(measure(arguments.only, arguments.part, arguments.requests)))
        return
    for name in [arguments.only] if arguments.only else SUBJECTS:
        parts = ["trace", "evict"]
        if issubclass(SUBJECTS[name], Ours) and name != "ours (python)":
            parts += ["memory 1", "memory 128"]
        print(name)
        for part in parts:
            command = [sys.executable, __file__, "--only", name, "--part", part]
            command += ["--requests", str(arguments.requests)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                reason = done.stderr.strip().rsplit("\n", 1)[-1]
                print(f"    not measured: {reason}")
                break
            figures = json.loads(done.stdout.rsplit("\n", 2)[-2])
            print("    " + "  ".join(f"{key} {value:,.2f}" for key, value in figures.items()))


if __name__ == "__main__":
    main()
