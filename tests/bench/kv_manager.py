"""CPU time of the cache manager alone, on a synthetic trace; no model, no memory behind it.

    python tests/bench/kv_manager.py [--requests 10000]

Trace: Zipf(0.9) choice among 200 shared prefixes of 512 to 1,536 tokens, each with a unique
suffix of as many, 32 output tokens; 256 running sequences, 100,000 blocks of 16 tokens. Figures
are microseconds of thread CPU time. `evict` obtains one block from a pool full of one-block
leaves.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from kvcache import AdmissionRequest, CacheManager, Fits

BLOCK_TOKENS = 16
NUM_BLOCKS = 100_001
RUNNING = 256
OUTPUT_TOKENS = 32
T = TypeVar("T")


class Timer:
    """CPU time per call, by name."""

    def __init__(self) -> None:
        self.nanoseconds: dict[str, list[int]] = {}

    def __call__(self, name: str, function: Callable[[], T]) -> T:
        start = time.thread_time_ns()
        result = function()
        self.nanoseconds.setdefault(name, []).append(time.thread_time_ns() - start)
        return result


def prompts(count: int) -> Iterator[NDArray[np.int32]]:
    """The trace; the same in every run."""
    rng = np.random.default_rng(0)
    prefixes = [
        rng.integers(0, 32_000, rng.integers(512, 1537), dtype=np.int32) for _ in range(200)
    ]
    weights = 1.0 / np.arange(1, 201) ** 0.9
    for choice in rng.choice(200, count, p=weights / weights.sum()):
        suffix = rng.integers(0, 32_000, rng.integers(512, 1537), dtype=np.int32)
        yield np.concatenate((prefixes[choice], suffix))


def replay(manager: CacheManager, requests: int, timer: Timer) -> None:
    """Keeps RUNNING sequences live; each is prefilled at once and then decodes."""
    running: deque[int] = deque()
    for sequence_id, prompt in enumerate(prompts(requests)):
        if len(running) == RUNNING:
            finish(manager, running.popleft(), timer)
        request = AdmissionRequest(sequence_id, prompt, b"")
        answer = timer("admit", lambda request=request: manager.admit(request))
        assert isinstance(answer, Fits)
        timer("begin", lambda answer=answer: manager.begin(answer))
        timer("commit", lambda i=sequence_id, n=prompt.size: manager.commit(i, n))
        running.append(sequence_id)
    while running:
        finish(manager, running.popleft(), timer)


def finish(manager: CacheManager, sequence_id: int, timer: Timer) -> None:
    """Decodes and releases one sequence."""
    for token in range(OUTPUT_TOKENS):
        timer("append (token)", lambda token=token: manager.append(sequence_id, token))
        computed = manager.num_tokens(sequence_id)
        timer("commit (token)", lambda computed=computed: manager.commit(sequence_id, computed))
    timer("release", lambda: manager.release(sequence_id))


def evictions(leaves: int, timer: Timer) -> None:
    """Fills a pool with one-block leaves and then takes blocks one by one."""
    manager = CacheManager(leaves + 1, 1)
    for leaf in range(leaves):
        answer = manager.admit(AdmissionRequest(leaf, np.array([leaf], np.int32), b""))
        assert isinstance(answer, Fits)
        manager.begin(answer)
        manager.commit(leaf, 1)
        manager.release(leaf)
    answer = manager.admit(AdmissionRequest(leaves, np.array([0], np.int32), b""))
    assert isinstance(answer, Fits)
    manager.begin(answer)
    for token in range(60):
        timer(f"evict 1 of {leaves:,}", lambda token=token: manager.append(leaves, token))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--requests", type=int, default=10_000, help="length of the trace")
    requests = parser.parse_args().requests
    timer = Timer()
    manager = CacheManager(NUM_BLOCKS, BLOCK_TOKENS)
    replay(manager, requests, timer)
    manager.audit()
    for leaves in (1_000, 10_000, 100_000):
        evictions(leaves, timer)
    stats = manager.stats()
    assert stats.held == 0, "blocks were leaked"
    print(f"{'':<20}{'calls':>9}{'mean us':>10}{'p50 us':>10}{'us a request':>14}")
    total = 0.0
    for name, samples in timer.nanoseconds.items():
        microseconds = np.array(samples) / 1000
        share = microseconds.sum() / requests if "evict" not in name else 0.0
        total += share
        print(
            f"{name:<20}{microseconds.size:>9,}{microseconds.mean():>10.1f}"
            f"{np.median(microseconds):>10.1f}{share:>14.1f}"
        )
    print(f"{'per request':<20}{'':>29}{total:>14.1f}")
    print(
        f"hit rate {stats.hit_tokens / stats.lookup_tokens:.2%}, evicted {stats.evicted_blocks:,} "
        f"blocks, de-duplicated {stats.deduplicated_blocks:,}, leaked {stats.held}"
    )


if __name__ == "__main__":
    main()
