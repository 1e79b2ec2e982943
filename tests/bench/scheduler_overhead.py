"""What a step costs beside the model: scheduler, batch packing, sampler, messages.

    python tests/bench/scheduler_overhead.py

Steps an `EngineCore` whose model answers a constant at once, and encodes each report as the
socket would carry it. Prints microseconds of CPU time per step, so that other load on the
machine does not count.
"""

from __future__ import annotations

import argparse
import statistics
import time

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvcache import Arena, CacheManager, KVDtype, KVLayout
from service.config import EngineSettings
from service.device.cpu import CpuDevice
from service.engine.core import EngineCore
from service.engine.messages import SamplingParams, SequenceSpec
from service.engine.runner import StepBatch

VOCAB_SIZE = 49152  # of SmolLM2


class ConstantRunner:
    """Answers the same logits at once, so that only the rest of the step takes time."""

    def __init__(self, rows: int) -> None:
        random = np.random.default_rng(0)
        logits = random.normal(0, 3, (rows, VOCAB_SIZE))
        logits[:, random.integers(0, VOCAB_SIZE, 50)] += 12  # a few likely tokens, as in text
        self._logits = logits.astype(np.float32)

    @property
    def vocab_size(self) -> int:
        """Number of logits per row."""
        return VOCAB_SIZE

    def forward(self, batch: StepBatch) -> NDArray[np.float32]:
        """The first rows of the constant."""
        return self._logits[: len(batch.logit_rows)]

    def step_bytes(self, tokens: int, logit_rows: int, context_tokens: int) -> int:
        """Nothing that counts."""
        return 1


SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "top-p 0.95": SamplingParams(temperature=1.0, top_p=0.95, seed=1),
    "unrestricted": SamplingParams(temperature=1.0, seed=1),
    "penalties": SamplingParams(temperature=1.0, top_k=40, repetition_penalty=1.1, seed=1),
    "logprobs 5": SamplingParams(temperature=0.0, logprobs=5),
}


def step_microseconds(batch_size: int, waiting: int, sampling: SamplingParams, steps: int) -> float:
    """Median time of a step in which all of the batch decodes, `waiting` others queued."""
    manager = CacheManager(20_000, 16)
    arena = Arena(KVLayout(1, 1, 1, 16, KVDtype.FLOAT32), 20_000)
    settings = EngineSettings(max_running_sequences=batch_size)
    core = EngineCore(
        ConstantRunner(batch_size),
        manager,
        arena,
        settings,
        max_context_tokens=8192,
        device=CpuDevice(),
        tell=print,
    )
    core.submit(
        SequenceSpec(
            sequence_id=number,
            prompt_ids=list(range(number, number + 500)),
            output_ids=[],
            sampling=sampling,
            max_tokens=4000,
        )
        for number in range(batch_size + waiting)
    )
    encoder = msgspec.msgpack.Encoder()
    while core.stats().prefill_tokens < 500 * batch_size:
        core.step()
    times = []
    for _ in range(steps):
        began = time.thread_time()
        encoder.encode(core.step())
        times.append(time.thread_time() - began)
    return statistics.median(times) * 1e6


def main() -> None:
    """Prints one line per sampling and batch size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300, help="steps per figure (default 300)")
    arguments = parser.parse_args()
    print(f"{'sampling':<14}{'batch':>6}{'waiting':>9}{'us/step':>10}")
    for name, sampling in SAMPLINGS.items():
        for batch_size, waiting in ((1, 0), (1, 1000), (8, 0), (32, 0), (64, 0)):
            cost = step_microseconds(batch_size, waiting, sampling, arguments.steps)
            print(f"{name:<14}{batch_size:>6}{waiting:>9}{cost:>10.0f}")


if __name__ == "__main__":
    main()
