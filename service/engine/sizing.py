"""How large the pool and the context are: settings, model and memory of the machine. Pure."""

from __future__ import annotations

from kvcache import KVLayout
from service.config import EngineSettings
from service.engine.errors import StartError
from service.models.config import ModelConfig

# The pool when neither kv_blocks nor kv_memory_bytes is set.
_DEFAULT_POOL_SHARE = 0.25
_DEFAULT_POOL_BYTES = 1 << 30


def pool_blocks(settings: EngineSettings, layout: KVLayout, available_bytes: int) -> int:
    """Usable blocks of the pool, the null block left out.

    Raises StartError for a pool that is too small to use, or larger than the memory that is
    available: its pages are taken when they are first written, so that the machine would
    run out of memory long after the start.
    """
    setting, value = "kv_memory_bytes", settings.kv_memory_bytes
    if settings.kv_blocks is not None:
        setting, value = "kv_blocks", settings.kv_blocks
        blocks = settings.kv_blocks
    else:
        if value is None:
            value = min(int(_DEFAULT_POOL_SHARE * available_bytes), _DEFAULT_POOL_BYTES)
        blocks = value // layout.block_bytes - 1
    if blocks < 1:
        raise StartError(
            f"{setting} = {value}: a pool of this model needs at least "
            f"{2 * layout.block_bytes} bytes (two blocks of {layout.block_tokens} tokens)"
        )
    pool_bytes = (blocks + 1) * layout.block_bytes
    if pool_bytes > available_bytes:
        raise StartError(
            f"{setting} = {value}: the pool takes {pool_bytes} bytes, "
            f"{available_bytes} are available"
        )
    return blocks


def largest_pool_blocks(settings: EngineSettings, layout: KVLayout, blocks: int) -> int:
    """Usable blocks that a pool of `blocks` at the start may grow to.

    Raises StartError when kv_memory_max_bytes is less than the pool at the start.
    """
    limit_bytes = settings.kv_memory_max_bytes
    if limit_bytes is None:
        return blocks
    most = limit_bytes // layout.block_bytes - 1
    if most < blocks:
        raise StartError(
            f"kv_memory_max_bytes = {limit_bytes}: the pool takes "
            f"{(blocks + 1) * layout.block_bytes} bytes from the start"
        )
    return most


def context_tokens(settings: EngineSettings, config: ModelConfig, blocks: int) -> int:
    """The longest context that the setting, the model and the largest pool, `blocks`, allow.

    Raises StartError when the setting asks for more.
    """
    wanted = settings.max_context_tokens
    if wanted is not None and wanted > config.context_tokens:
        raise StartError(
            f"max_context_tokens = {wanted}: the model's limit is {config.context_tokens}"
        )
    pool_tokens = blocks * settings.block_tokens
    if wanted is not None and wanted > pool_tokens:
        raise StartError(
            f"max_context_tokens = {wanted}: the KV pool of {blocks} blocks holds "
            f"{pool_tokens} tokens"
        )
    return wanted or min(config.context_tokens, pool_tokens)
