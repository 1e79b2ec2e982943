"""The torch runner: our own model code on the CPU, over the pool of an arena."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from kvcache import Arena
from kvcache.attention.cpu import CpuAttention
from kvcache.attention.kernels import ExactKernel, FusedKernel
from service.device.memory import DeviceMemory
from service.device.owner import Owner
from service.device.torch_errors import device_error
from service.engine.runner import StepBatch
from service.models.activations import StepMemory, StepShape
from service.models.config import ModelConfig
from service.models.torch_checkpoint import Checkpoint
from service.models.torch_linear import LinearMode
from service.models.torch_llama import Llama
from service.models.torch_weights import WeightLoader

ATTENTION_BACKEND = "torch-cpu"


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """How a model is computed."""

    weights_dtype: str  # "bfloat16" or "float32"
    mode: LinearMode
    context_tokens: int
    threads: int


class TorchRunner:
    """A `Runner` of a Llama-family model; it reads and writes the blocks of `arena`.

    Its tensors view the whole reservation, so that the arena may grow and shrink between steps.
    """

    def __init__(
        self,
        config: ModelConfig,
        checkpoint: Checkpoint,
        arena: Arena,
        device: DeviceMemory,
        options: RunnerOptions,
        on_layer_loaded: Callable[[int], None],
        on_layer_computed: Callable[[], None],
    ) -> None:
        """`device` is asked for the memory of each step; that of the weights was claimed."""
        torch.set_num_threads(options.threads)
        dtype: torch.dtype = getattr(torch, options.weights_dtype)
        pool_dtype: torch.dtype = getattr(torch, arena.layout.dtype.value)
        pool = torch.frombuffer(arena.buffer, dtype=pool_dtype)
        self._pool = pool.view(arena.layout.shape(arena.max_blocks))
        # Packed float32 products answer a row with the same bits in every batch; others do not.
        kernel = ExactKernel if options.mode is LinearMode.PACKED else FusedKernel
        self._kernel = kernel(config.head_dim**-0.5)  # as the Llama family scales scores
        loader = WeightLoader(config, checkpoint, dtype, options.mode)
        weights = loader.load(options.context_tokens, on_layer_loaded)
        self._attention = CpuAttention(self._pool, self._kernel)
        self._model = Llama(config, weights, self._attention, on_layer_computed)
        self._vocab_size = config.vocab_size
        self._device = device
        self._memory = StepMemory(config, pool.element_size(), options.threads)

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def step_memory(self) -> StepMemory:
        """What steps take, as far as is known."""
        return self._memory

    def step_bytes(self, tokens: int, logit_rows: int, context_tokens: int) -> int:
        sequences = min(tokens, max(1, logit_rows))
        return self._memory.step_bytes(StepShape(tokens, sequences, logit_rows, context_tokens))

    def forward(self, batch: StepBatch) -> NDArray[np.float32]:
        claim_bytes = self._memory.step_bytes(_shape_of(batch))
        self._device.take(Owner.ACTIVATIONS, claim_bytes)
        try:
            return _compute(self._model, self._attention, batch)
        except (RuntimeError, MemoryError) as error:
            failure = device_error(error, claim_bytes)
            if failure is None:
                raise
        finally:
            self._device.give_back(Owner.ACTIVATIONS, claim_bytes)
        # Outside the block above: in it the traceback would keep every tensor of the step alive.
        raise failure

    def measure(
        self, batch: StepBatch, peak_bytes: Callable[[Callable[[], object]], int | None]
    ) -> int | None:
        """What one layer takes at its peak for a step, and no later layer takes more.

        `peak_bytes` tells it of any work, or None where that cannot be known. Where it is more
        than `step_bytes` would say, that says more from now on.
        """
        attention = CpuAttention(self._pool, self._kernel)  # what it keeps goes with it
        model = self._model.one_layer(attention)
        measured_bytes = peak_bytes(lambda: _compute(model, attention, batch))
        if measured_bytes is not None:
            self._memory = self._memory.corrected(_shape_of(batch), measured_bytes)
        return measured_bytes


def _compute(model: Llama, attention: CpuAttention, batch: StepBatch) -> NDArray[np.float32]:
    plan = attention.plan(batch.slots, batch.query_starts, batch.context_lens, batch.block_tables)
    with torch.inference_mode():
        logits: NDArray[np.float32] = model.forward(
            torch.from_numpy(batch.token_ids),
            torch.from_numpy(batch.positions),
            plan,
            torch.from_numpy(batch.logit_rows),
        ).numpy()
    return logits


def _shape_of(batch: StepBatch) -> StepShape:
    return StepShape(
        tokens=len(batch.token_ids),
        sequences=len(batch.context_lens),
        logit_rows=len(batch.logit_rows),
        context_tokens=int(batch.context_lens.max()),
    )
