"""Makes a runner: chooses types and sizes, loads the model, makes one real token."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvcache import Arena, KVDtype, KVLayout
from kvcache.arena import HEADROOM_BYTES
from kvcache.errors import ArenaError
from kvcache.host_memory import available_memory_bytes
from kvcache.tiers import Fingerprint
from service.config import EngineSettings
from service.device.arena import DeviceArena
from service.device.cpu import CpuDevice
from service.device.memory import DeviceMemory
from service.engine.errors import StartError
from service.engine.host import usable_cores
from service.engine.messages import Loading
from service.engine.openmp import wait_politely
from service.engine.pulse import unwatched
from service.engine.runner import Runner, StepBatch
from service.engine.sizing import context_tokens, largest_pool_blocks, pool_blocks
from service.models.config import load_model_config
from service.models.source import ModelSource, contents_digest, resolve_model

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
) -> BuiltRunner:
    """Loads the model of the settings; raises ModelFileError or StartError.

    The runner calls `beat` after each layer that it computes.

    torch is imported in here, so that the first progress is told before it, and so that a
    mistake in the settings or the model's configuration is told without it.
    """
    source = resolve_model(settings.model)
    config = load_model_config(source)
    weights_dtype = "bfloat16" if settings.dtype == "auto" else settings.dtype
    kv_dtype = KVDtype(weights_dtype if settings.kv_dtype == "auto" else settings.kv_dtype)
    layout = KVLayout(
        config.layers, config.kv_heads, config.head_dim, settings.block_tokens, kv_dtype
    )
    usable_blocks = pool_blocks(settings, layout, available_memory_bytes())
    max_usable_blocks = largest_pool_blocks(settings, layout, usable_blocks)
    max_context_tokens = context_tokens(settings, config, max_usable_blocks)
    num_blocks = usable_blocks + 1

    wait_politely()
    progress(Loading("import", 0, 0, "modules"))
    from service.engine.torch_runner import ATTENTION_BACKEND, RunnerOptions, TorchRunner
    from service.models.torch_checkpoint import open_checkpoint
    from service.models.torch_linear import choose_linear_mode

    checkpoint = open_checkpoint(source, config)
    progress(Loading("kv pool", 0, usable_blocks, "blocks"))
    arena = _allocate(layout, num_blocks, max_usable_blocks + 1)
    progress(Loading("kv pool", usable_blocks, usable_blocks, "blocks"))
    device = CpuDevice()
    options = RunnerOptions(
        weights_dtype=weights_dtype,
        mode=choose_linear_mode(
            weights_dtype,
            settings.packed_weights,
            packed_bytes=4 * config.parameters,
            limit_bytes=int(_PACKED_SHARE * available_memory_bytes()),
        ),
        context_tokens=max_context_tokens,
        threads=settings.threads or usable_cores(),
    )
    runner = TorchRunner(
        config,
        checkpoint,
        arena,
        device,
        options,
        lambda done: progress(Loading("weights", done, config.layers, "layers")),
        beat,
    )
    progress(Loading("warm-up", 0, 1, "tokens"))
    _make_token(runner, config.bos_id or 0)
    progress(Loading("warm-up", 1, 1, "tokens"))
    device_arena = DeviceArena(arena, device, HEADROOM_BYTES)
    device.promised_bytes = arena.promised_bytes
    return BuiltRunner(
        runner=runner,
        layout=layout,
        device=device,
        arena=device_arena,
        num_blocks=num_blocks,
        max_context_tokens=max_context_tokens,
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


def _make_token(runner: Runner, token_id: int) -> None:
    """Computes one token in the null block, which no sequence ever reads."""
    logits = runner.forward(
        StepBatch(
            token_ids=np.array([token_id], np.int32),
            positions=np.array([0], np.int32),
            slots=np.array([0], np.int64),
            query_starts=np.array([0, 1], np.int32),
            context_lens=np.array([1], np.int32),
            block_tables=np.array([[0]], np.int32),
            logit_rows=np.array([0], np.int32),
        )
    )
    if not np.isfinite(logits).all():
        raise StartError("the model's first token has logits that are not finite: bad weights")
