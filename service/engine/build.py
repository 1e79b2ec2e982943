"""Makes a runner: chooses types and sizes, loads the model, makes one real token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from kvcache import Arena, KVDtype, KVLayout
from kvcache.errors import ArenaError
from kvcache.tiers import Fingerprint
from service.config import EngineSettings
from service.device.arena import DeviceArena
from service.device.cpu import CpuDevice
from service.device.errors import DeviceOutOfMemoryError
from service.device.memory import DeviceMemory
from service.device.owner import Owner
from service.engine.budget import MemoryBudget
from service.engine.errors import StartError
from service.engine.host import usable_cores
from service.engine.messages import Loading, Predecessor
from service.engine.openmp import wait_politely
from service.engine.pulse import unwatched
from service.engine.runner import Runner, StepBatch
from service.engine.sizing import largest_step
from service.engine.trial_step import null_batch, trial_shape
from service.models.activations import StepMemory, StepShape
from service.models.config import load_model_config
from service.models.source import ModelSource, contents_digest, resolve_model
from service.models.weight_bytes import WeightCopies

# `packed_weights = auto`: the second copy of the weights may take this share of free memory.
_PACKED_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class BuiltRunner:
    """A runner that has computed a token, and the facts about it."""

    runner: Runner
    layout: KVLayout
    device: DeviceMemory
    arena: DeviceArena
    num_blocks: int  # at the start, the null block included
    ceiling_blocks: int  # usable ones that the pool is to have, at the start or when it can
    max_context_tokens: int
    vocab_size: int
    fingerprint: Fingerprint  # of what the blocks hold, for the tiers below the pool
    model_version: str
    weights_dtype: str
    kv_dtype: str
    device_name: str
    attention_backend: str


def build_runner(
    settings: EngineSettings,
    progress: Callable[[Loading], None],
    beat: Callable[[], None] = unwatched,
    predecessor: Predecessor | None = None,
) -> BuiltRunner:
    """Loads the model of the settings; raises ModelFileError or StartError.

    The runner calls `beat` after each layer that it computes. The sizes of a `predecessor` are
    taken over, whatever is free now.

    torch is imported in here, so that the first progress is told before it, and so that a
    mistake in the settings or the model's configuration is told without it.
    """
    try:
        return _build(settings, progress, beat, predecessor)
    except DeviceOutOfMemoryError as error:  # somebody else took what was there a moment ago
        raise StartError(f"memory ran out during the start: {error}") from error


def _build(
    settings: EngineSettings,
    progress: Callable[[Loading], None],
    beat: Callable[[], None],
    predecessor: Predecessor | None,
) -> BuiltRunner:
    source = resolve_model(settings.model)
    config = load_model_config(source)
    weights_dtype = "bfloat16" if settings.dtype == "auto" else settings.dtype
    kv_dtype = KVDtype(weights_dtype if settings.kv_dtype == "auto" else settings.kv_dtype)
    layout = KVLayout(
        config.layers, config.kv_heads, config.head_dim, settings.block_tokens, kv_dtype
    )
    threads = settings.threads or usable_cores()
    budget = MemoryBudget(
        settings,
        config,
        layout,
        WeightCopies(KVDtype(weights_dtype).itemsize, plain=True, packed=False),
        StepMemory(config, kv_dtype.itemsize, threads),
        predecessor,
    )
    budget.plan()

    wait_politely()
    progress(Loading("import", 0, 0, "modules"))
    from service.engine.torch_runner import ATTENTION_BACKEND, RunnerOptions, TorchRunner
    from service.models.torch_checkpoint import open_checkpoint
    from service.models.torch_linear import LinearMode, choose_linear_mode

    checkpoint = open_checkpoint(source, config)
    budget.look()
    mode = choose_linear_mode(
        weights_dtype,
        settings.packed_weights,
        packed_bytes=4 * config.parameters,
        limit_bytes=int(_PACKED_SHARE * (budget.capacity_bytes - budget.runtime_bytes)),
    )
    budget.copies = replace(
        budget.copies, plain=mode is not LinearMode.PACKED, packed=mode is not LinearMode.PLAIN
    )
    plan = budget.plan()
    device = CpuDevice(settings.device_memory_bytes, context_bytes=budget.runtime_bytes)
    device.take(Owner.WEIGHTS, budget.weights_bytes(plan.context_tokens))
    arena = _allocate(layout, plan.blocks + 1, plan.max_blocks + 1)
    runner = TorchRunner(
        config,
        checkpoint,
        arena,
        device,
        RunnerOptions(weights_dtype, mode, plan.context_tokens, threads),
        lambda done: progress(Loading("weights", done, config.layers, "layers")),
        beat,
    )
    progress(Loading("warm-up", 0, 2, "steps"))
    token_id = config.bos_id or 0
    _make_token(runner, null_batch(StepShape(1, 1, 1, 1), layout.block_tokens, token_id))
    progress(Loading("warm-up", 1, 2, "steps"))
    trial = trial_shape(config, largest_step(settings, plan.context_tokens))
    runner.measure(null_batch(trial, layout.block_tokens, token_id), device.peak_bytes)
    progress(Loading("warm-up", 2, 2, "steps"))

    budget.step_memory = runner.step_memory
    plan = budget.plan()
    progress(Loading("kv pool", 0, plan.blocks, "blocks"))
    arena.shrink(min(arena.num_blocks, plan.blocks + 1))
    pool = DeviceArena(arena, device, headroom_bytes=budget.step_bytes(plan.context_tokens))
    device.promised_bytes = arena.promised_bytes
    progress(Loading("kv pool", plan.blocks, plan.blocks, "blocks"))
    return BuiltRunner(
        runner=runner,
        layout=layout,
        device=device,
        arena=pool,
        num_blocks=arena.num_blocks,
        ceiling_blocks=arena.num_blocks - 1 if predecessor is None else predecessor.blocks,
        max_context_tokens=plan.context_tokens,
        vocab_size=config.vocab_size,
        fingerprint=Fingerprint(
            weights_identity(settings, source, weights_dtype), repr(config.rope), layout
        ),
        model_version=checkpoint.version(),
        weights_dtype=weights_dtype,
        kv_dtype=kv_dtype.value,
        device_name="cpu",
        attention_backend=ATTENTION_BACKEND,
    )


def weights_identity(settings: EngineSettings, source: ModelSource, weights_dtype: str) -> str:
    """What tells these weights, and the type they compute in, from all others.

    Blocks outlive the process, or leave it, only in a disk or remote tier; then the files are
    read whole, since two sets of weights may well agree in names, shapes and sizes.
    """
    if settings.disk_cache_folder is None and settings.remote_cache_url is None:
        return "of this process"
    return f"{contents_digest(source)} in {weights_dtype}"


def _allocate(layout: KVLayout, num_blocks: int, max_blocks: int) -> Arena:
    try:
        return Arena(layout, num_blocks, max_blocks)
    except ArenaError as error:
        raise StartError(str(error)) from error


def _make_token(runner: Runner, batch: StepBatch) -> None:
    """Computes a first token, and sees that it is one."""
    if not np.isfinite(runner.forward(batch)).all():
        raise StartError("the model's first token has logits that are not finite: bad weights")
