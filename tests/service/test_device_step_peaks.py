"""The bound of what a step takes, against what the allocator of torch hands out.

The profiler of torch hears of every allocation, those within operators included.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from kvcache import Arena, KVDtype, KVLayout
from service.device.cpu import CpuDevice
from service.device.errors import DeviceLostError, DeviceOutOfMemoryError
from service.device.owner import Owner
from service.engine.runner import StepBatch
from service.engine.torch_runner import RunnerOptions, TorchRunner
from service.engine.trial_step import null_batch
from service.models.activations import StepShape
from service.models.config import ModelConfig, config_from_hf
from service.models.torch_linear import LinearMode

MIB = 1 << 20
BLOCK_TOKENS = 16
CONTEXT_TOKENS = 4096
# The buffers of operators and threads, which the bound has whatever the step.
FIXED_BYTES = 6 * MIB
# How far the bound may be above the peak: it counts at once what is alive in turns, and
# operands of 4 bytes where plain bfloat16 has 2.
SLACK = {LinearMode.PACKED: 2.6, LinearMode.PLAIN: 3.5, LinearMode.HYBRID: 2.6}


class RandomCheckpoint:
    """Weights of any shape."""

    def has(self, _name: str) -> bool:
        return False

    def read(self, _name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.rand(shape) / 100


@dataclass(frozen=True)
class Model:
    """Its widths decide in which part of a step most is taken."""

    name: str
    hidden: int
    inner: int
    heads: int
    kv_heads: int
    vocab: int
    model_type: str = "llama"

    def config(self, folder: Path) -> ModelConfig:
        path = folder / f"{self.name}.json"
        path.write_text(
            json.dumps(
                {
                    "model_type": self.model_type,
                    "vocab_size": self.vocab,
                    "hidden_size": self.hidden,
                    "intermediate_size": self.inner,
                    "num_hidden_layers": 2,
                    "num_attention_heads": self.heads,
                    "num_key_value_heads": self.kv_heads,
                    "head_dim": self.hidden // self.heads,
                    "max_position_embeddings": CONTEXT_TOKENS,
                }
            )
        )
        return config_from_hf(path)


MODELS = [
    Model("attention", hidden=512, inner=256, heads=8, kv_heads=8, vocab=512),
    Model("normed", hidden=512, inner=256, heads=8, kv_heads=4, vocab=512, model_type="qwen3"),
    Model("mlp", hidden=256, inner=4096, heads=4, kv_heads=1, vocab=512),
    Model("logits", hidden=128, inner=256, heads=4, kv_heads=2, vocab=50_000),
]
WAYS = [
    ("float32", LinearMode.PACKED, KVDtype.FLOAT32),
    ("bfloat16", LinearMode.PLAIN, KVDtype.BFLOAT16),
    ("bfloat16", LinearMode.HYBRID, KVDtype.FLOAT32),
]
# Tokens and context of each sequence; how many rows of logits.
STEPS = {
    "a prompt": ([(300, 300)], 1),
    "the end of a long prompt": ([(256, 4096)], 1),
    "two chunks": ([(128, 2000), (128, 3000)], 2),
    "decoding": ([(1, 200)] * 40, 40),
    "decoding at long contexts": ([(1, 4000)] * 8, 8),
    "both": ([(1, 900)] * 30 + [(200, 1500)], 31),
    "logprobs of a prompt": ([(100, 100)], 100),
}


def make_runner(
    folder: Path,
    model: Model,
    way: tuple[str, LinearMode, KVDtype],
    device: CpuDevice,
    on_layer: Callable[[], None] = lambda: None,
) -> TorchRunner:
    weights_dtype, mode, kv_dtype = way
    config = model.config(folder)
    layout = KVLayout(config.layers, config.kv_heads, config.head_dim, BLOCK_TOKENS, kv_dtype)
    return TorchRunner(
        config,
        RandomCheckpoint(),  # type: ignore[arg-type]
        Arena(layout, 2),
        device,
        RunnerOptions(weights_dtype, mode, CONTEXT_TOKENS, threads=2),
        lambda _: None,
        on_layer,
    )


def batch_of(sequences: list[tuple[int, int]], logit_rows: int) -> StepBatch:
    """All in the null block, as in the step that is measured at the start."""
    tokens = np.array([tokens for tokens, _ in sequences])
    contexts = np.array([context for _, context in sequences], np.int32)
    flat = int(tokens.sum())
    positions = [np.arange(context - n, context) for n, context in sequences]
    return StepBatch(
        token_ids=np.zeros(flat, np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        slots=np.arange(flat, dtype=np.int64) % BLOCK_TOKENS,
        query_starts=np.concatenate([[0], np.cumsum(tokens)]).astype(np.int32),
        context_lens=contexts,
        block_tables=np.zeros((len(sequences), -(-int(contexts.max()) // BLOCK_TOKENS)), np.int32),
        logit_rows=np.arange(flat - logit_rows, flat, dtype=np.int32),
    )


def shape_of(sequences: list[tuple[int, int]], logit_rows: int) -> StepShape:
    return StepShape(
        tokens=sum(tokens for tokens, _ in sequences),
        sequences=len(sequences),
        logit_rows=logit_rows,
        context_tokens=max(context for _, context in sequences),
    )


def allocated_peak_bytes(folder: Path, work: Callable[[], object]) -> int:
    """The most that the CPU allocator has handed out during `work` and not got back."""
    trace = folder / "trace.json"
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    profiler.export_chrome_trace(str(trace))
    events = [e for e in json.loads(trace.read_text())["traceEvents"] if e["name"] == "[memory]"]
    events.sort(key=lambda event: float(event["ts"]))
    return int(max(np.cumsum([event["args"]["Bytes"] for event in events])))


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way[0]}-{way[1].value}-{way[2].value}")
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_step_takes_no_more_than_its_bound_and_not_much_less(
    tmp_path: Path, model: Model, way: tuple[str, LinearMode, KVDtype]
) -> None:
    runner = make_runner(tmp_path, model, way, CpuDevice())
    wrong = []
    for name, (sequences, rows) in STEPS.items():
        batch = batch_of(sequences, rows)
        bound_bytes = runner.step_memory.step_bytes(shape_of(sequences, rows))
        one_layer_bytes = runner.measure(batch, lambda work: allocated_peak_bytes(tmp_path, work))
        assert one_layer_bytes is not None
        is_near = bound_bytes <= SLACK[way[1]] * one_layer_bytes + FIXED_BYTES
        if one_layer_bytes > bound_bytes or not is_near:
            wrong.append((name, one_layer_bytes, bound_bytes))
    assert not wrong
    assert runner.step_memory.factor == 1.0


def test_more_layers_take_no_more_than_one(tmp_path: Path) -> None:
    runner = make_runner(tmp_path, MODELS[0], WAYS[0], CpuDevice())
    batch = batch_of(*STEPS["both"])
    runner.forward(batch)  # what attention keeps is there
    two_layers_bytes = allocated_peak_bytes(tmp_path, lambda: runner.forward(batch))
    one_layer_bytes = runner.measure(batch, lambda work: allocated_peak_bytes(tmp_path, work))
    assert one_layer_bytes is not None
    assert two_layers_bytes <= one_layer_bytes


class TestTrial:
    """The step that is measured at the start."""

    WAY = WAYS[0]

    def test_it_computes_one_layer_and_leaves_the_books_as_they_are(self, tmp_path: Path) -> None:
        beats: list[int] = []
        device = CpuDevice()
        runner = make_runner(tmp_path, MODELS[0], self.WAY, device, lambda: beats.append(1))
        batch = null_batch(StepShape(32, 1, 1, 64), BLOCK_TOKENS, 0)
        assert (runner.measure(batch, device.peak_bytes) or 0) >= 0
        assert len(beats) == 1
        assert device.figures().by_owner[Owner.ACTIVATIONS] == 0
        runner.forward(batch)
        assert len(beats) == 3

    def test_a_bound_that_is_too_low_is_raised_and_an_unknown_peak_is_no_news(
        self, tmp_path: Path
    ) -> None:
        runner = make_runner(tmp_path, MODELS[0], self.WAY, CpuDevice())
        shape = StepShape(32, 1, 1, 64)
        batch = null_batch(shape, BLOCK_TOKENS, 0)
        said_bytes = runner.step_bytes(32, 1, 64)
        assert runner.measure(batch, lambda _: None) is None
        assert runner.step_bytes(32, 1, 64) == said_bytes
        runner.measure(batch, lambda _: 2 * said_bytes)
        assert runner.step_bytes(32, 1, 64) == 2 * said_bytes


class TestForward:
    """A step claims its memory, and tells failures of memory from all others."""

    WAY = WAYS[0]

    def test_a_step_claims_its_bound_and_leaves_it_to_the_next_one(self, tmp_path: Path) -> None:
        device = CpuDevice()
        seen: list[int] = []
        runner = make_runner(
            tmp_path,
            MODELS[0],
            self.WAY,
            device,
            lambda: seen.append(device.figures().by_owner[Owner.ACTIVATIONS]),
        )
        runner.forward(batch_of([(20, 20)], 1))
        claim_bytes = runner.step_bytes(20, 1, 20)
        assert seen == [claim_bytes, claim_bytes]
        assert device.figures().reclaimable_bytes == claim_bytes

    def test_a_step_that_the_device_has_no_memory_for_is_not_begun(self, tmp_path: Path) -> None:
        device = CpuDevice(64 * MIB)
        layers: list[int] = []
        runner = make_runner(tmp_path, MODELS[0], self.WAY, device, lambda: layers.append(1))
        device.set_foreign(64 * MIB - runner.step_bytes(20, 1, 20))
        runner.forward(batch_of([(20, 20)], 1))
        with pytest.raises(DeviceOutOfMemoryError) as caught:
            runner.forward(batch_of([(21, 21)], 1))
        assert caught.value.owner is Owner.ACTIVATIONS
        assert caught.value.wanted_bytes == runner.step_bytes(21, 1, 21)
        assert len(layers) == 2
        runner.forward(batch_of([(20, 20)], 1))

    @pytest.mark.parametrize(
        ("fault", "expected"),
        [
            (
                RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate"),
                DeviceOutOfMemoryError,
            ),
            (MemoryError(), DeviceOutOfMemoryError),
            (torch.AcceleratorError("CUDA error: an illegal memory access"), DeviceLostError),
            (RuntimeError("shapes do not match"), RuntimeError),
        ],
    )
    def test_what_fails_within_a_step_is_told_by_type_and_ends_its_claim(
        self, tmp_path: Path, fault: Exception, expected: type[Exception]
    ) -> None:
        device = CpuDevice()
        faults: list[Exception] = []

        def fail() -> None:
            if faults:
                raise faults.pop()

        runner = make_runner(tmp_path, MODELS[0], self.WAY, device, fail)
        batch = batch_of([(BLOCK_TOKENS, BLOCK_TOKENS)], 1)  # each token has a slot of its own
        undisturbed = runner.forward(batch).copy()
        faults.append(fault)
        with pytest.raises(expected) as caught:
            runner.forward(batch)
        if expected is not RuntimeError:
            assert caught.value.__context__ is None, "its traceback would keep tensors alive"
        if isinstance(caught.value, DeviceOutOfMemoryError):
            assert caught.value.wanted_bytes == runner.step_bytes(BLOCK_TOKENS, 1, BLOCK_TOKENS), (
                "it was not told"
            )
        figures = device.figures()
        assert figures.by_owner[Owner.ACTIVATIONS] == figures.reclaimable_bytes
        np.testing.assert_array_equal(runner.forward(batch), undisturbed)
