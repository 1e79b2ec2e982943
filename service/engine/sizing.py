"""How large the pool and the context are: settings, model and memory of the device. Pure.

Weights, the largest step and the pool share one memory. All of it grows with the pool, or with
the context that the pool allows: what fits with n blocks fits with fewer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvcache import KVLayout
from service.config import EngineSettings
from service.engine.errors import StartError
from service.engine.messages import Predecessor
from service.models.activations import StepShape
from service.models.config import ModelConfig

# The pool when neither its size nor that of the device is set.
_DEFAULT_POOL_SHARE = 0.25
_DEFAULT_POOL_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class MemoryTerms:
    """What there is, and what beside the pool takes of it."""

    capacity_bytes: int  # of the device, or less where the host has less left
    runtime_bytes: int  # of the process, before it loads anything
    weights_bytes: Callable[[int], int]  # with the longest context, in tokens
    step_bytes: Callable[[int], int]  # the same; of the largest step


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What was chosen; blocks are usable ones, the null block left out."""

    blocks: int  # at the start
    max_blocks: int  # that the pool may grow to
    context_tokens: int  # the longest, prompt and output together


def largest_step(settings: EngineSettings, context_tokens: int) -> StepShape:
    """The step that takes most memory."""
    tokens = settings.max_step_tokens
    sequences = min(tokens, settings.max_running_sequences)
    rows = min(tokens, sequences + settings.prompt_logprob_rows)
    return StepShape(tokens, sequences, rows, context_tokens)


def plan_pool(
    settings: EngineSettings,
    config: ModelConfig,
    layout: KVLayout,
    terms: MemoryTerms,
    predecessor: Predecessor | None = None,
) -> PoolPlan:
    """Sizes of the pool and of the context; raises StartError for what does not fit.

    Pages of the pool are taken when they are first written: with a pool that does not fit, the
    machine would run out of memory long after the start.
    """
    if predecessor is not None:
        return _taken_over(predecessor, config, layout, terms)
    wanted_tokens = settings.max_context_tokens
    if wanted_tokens is not None and wanted_tokens > config.context_tokens:
        raise StartError(
            f"max_context_tokens = {wanted_tokens}: the model's limit is {config.context_tokens}"
        )
    fit = Fit(config.context_tokens, wanted_tokens, layout, terms)
    blocks, budget_bytes, subject = _blocks_at_start(settings, fit)
    if not 1 <= blocks <= fit.most_blocks(budget_bytes):
        raise StartError(f"{subject}: {fit.explain(max(1, blocks), budget_bytes)}")
    max_blocks = _blocks_at_most(settings, fit, blocks)
    if wanted_tokens is not None and wanted_tokens > max_blocks * layout.block_tokens:
        raise StartError(
            f"max_context_tokens = {wanted_tokens}: the KV pool of {max_blocks} blocks holds "
            f"{max_blocks * layout.block_tokens} tokens. {fit.explain_context()}"
        )
    return PoolPlan(blocks, max_blocks, fit.context_tokens(max_blocks))


class Fit:
    """What fits into a number of bytes."""

    def __init__(
        self,
        model_tokens: int,
        wanted_tokens: int | None,
        layout: KVLayout,
        terms: MemoryTerms,
    ) -> None:
        """`wanted_tokens` is the context that a pool of whatever size has to serve, if any."""
        self.layout = layout
        self.terms = terms
        self._model_tokens = model_tokens
        self._wanted_tokens = wanted_tokens

    def context_tokens(self, blocks: int) -> int:
        """The longest context with a pool of so many blocks."""
        pool_tokens = blocks * self.layout.block_tokens
        return self._wanted_tokens or min(self._model_tokens, pool_tokens)

    def pool_bytes(self, blocks: int) -> int:
        """Bytes of a pool, the null block included."""
        return (blocks + 1) * self.layout.block_bytes

    def blocks_in(self, size_bytes: int) -> int:
        """Usable blocks of a pool of so many bytes; below 1: none."""
        return size_bytes // self.layout.block_bytes - 1

    def most_blocks(self, budget_bytes: int) -> int:
        """The largest pool that fits beside all the rest; 0: none does."""
        return _largest(
            max(0, self.blocks_in(budget_bytes)),
            lambda blocks: (
                self._beside_pool_bytes(self.context_tokens(blocks)) + self.pool_bytes(blocks)
                <= budget_bytes
            ),
        )

    def explain(self, blocks: int, budget_bytes: int) -> str:
        """Why a pool does not fit: what is wanted, term by term, and what would fit."""
        tokens, pool_bytes = self.context_tokens(blocks), self.pool_bytes(blocks)
        terms = self.terms
        wanted_bytes = self._beside_pool_bytes(tokens) + pool_bytes
        return (
            f"the pool takes {pool_bytes} bytes (the null block and {blocks} of "
            f"{self.layout.block_tokens} tokens), the weights {terms.weights_bytes(tokens)}, the "
            f"largest step {terms.step_bytes(tokens)}, the process itself {terms.runtime_bytes}: "
            f"{wanted_bytes} bytes are wanted, {budget_bytes} may be taken. "
            f"{self.explain_context(budget_bytes)}"
        )

    def explain_context(self, budget_bytes: int | None = None) -> str:
        """What would fit, in the words of an error; None: into all that there is."""
        if budget_bytes is None:
            budget_bytes = self.terms.capacity_bytes
        tokens = self.largest_context_tokens(budget_bytes)
        if tokens == 0:
            return "Not even a context of one token would fit"
        return f"The largest context that would fit is {tokens} tokens"

    def largest_context_tokens(self, budget_bytes: int) -> int:
        """The longest context that fits with the pool that it needs; 0: none does."""

        def fits(tokens: int) -> bool:
            blocks = -(-tokens // self.layout.block_tokens)
            return self._beside_pool_bytes(tokens) + self.pool_bytes(blocks) <= budget_bytes

        return _largest(self._model_tokens, fits)

    def _beside_pool_bytes(self, context_tokens: int) -> int:
        terms = self.terms
        return (
            terms.runtime_bytes
            + terms.weights_bytes(context_tokens)
            + terms.step_bytes(context_tokens)
        )


def _taken_over(
    predecessor: Predecessor, config: ModelConfig, layout: KVLayout, terms: MemoryTerms
) -> PoolPlan:
    """The sizes of the engine before; of the pool, at the start, as much as there is room for."""
    fit = Fit(config.context_tokens, predecessor.context_tokens, layout, terms)
    blocks = min(predecessor.blocks, fit.most_blocks(terms.capacity_bytes))
    if blocks < 1:
        raise StartError(
            f"no room for what the engine before served: {fit.explain(1, terms.capacity_bytes)}"
        )
    return PoolPlan(blocks, predecessor.max_blocks, predecessor.context_tokens)


def _blocks_at_start(settings: EngineSettings, fit: Fit) -> tuple[int, int, str]:
    """Blocks, bytes that all together may take, and the setting that asks for them."""
    capacity_bytes = fit.terms.capacity_bytes
    if settings.kv_blocks is not None:
        return settings.kv_blocks, capacity_bytes, f"kv_blocks = {settings.kv_blocks}"
    size_bytes = settings.kv_memory_bytes
    if size_bytes is not None:
        subject = f"kv_memory_bytes = {size_bytes}"
        return _blocks_of(size_bytes, fit, subject), capacity_bytes, subject
    limit_bytes = settings.kv_memory_max_bytes
    if settings.device_memory_bytes is None:
        free_bytes = max(0, capacity_bytes - fit.terms.runtime_bytes)
        size_bytes = min(int(_DEFAULT_POOL_SHARE * free_bytes), _DEFAULT_POOL_BYTES)
        subject = f"kv_memory_bytes is not set, {size_bytes} by default"
        blocks = min(_blocks_of(size_bytes, fit, subject), fit.most_blocks(capacity_bytes))
        return blocks, capacity_bytes, subject
    budget_bytes = int(settings.gpu_memory_utilization * capacity_bytes)
    blocks = fit.most_blocks(budget_bytes)
    if limit_bytes is not None:
        blocks = min(blocks, _blocks_of(limit_bytes, fit, f"kv_memory_max_bytes = {limit_bytes}"))
    subject = (
        f"device_memory_bytes = {settings.device_memory_bytes}, "
        f"gpu_memory_utilization = {settings.gpu_memory_utilization:g}"
    )
    return blocks, budget_bytes, subject


def _blocks_of(size_bytes: int, fit: Fit, subject: str) -> int:
    """Usable blocks of a pool of this size; raises StartError where there is none."""
    blocks = fit.blocks_in(size_bytes)
    if blocks < 1:
        raise StartError(
            f"{subject}: the smallest pool, the null block and one of {fit.layout.block_tokens} "
            f"tokens, takes {fit.pool_bytes(1)} bytes"
        )
    return blocks


def _blocks_at_most(settings: EngineSettings, fit: Fit, blocks: int) -> int:
    """What the pool may grow to; the device decides where its size is set, and the setting."""
    most_blocks = blocks
    if settings.device_memory_bytes is not None:
        most_blocks = fit.most_blocks(fit.terms.capacity_bytes)
    limit_bytes = settings.kv_memory_max_bytes
    if limit_bytes is None:
        return most_blocks
    limit_blocks = fit.blocks_in(limit_bytes)
    if limit_blocks < blocks:
        raise StartError(
            f"kv_memory_max_bytes = {limit_bytes}: the pool takes {fit.pool_bytes(blocks)} bytes "
            "from the start"
        )
    return limit_blocks if settings.device_memory_bytes is None else min(limit_blocks, most_blocks)


def _largest(highest: int, fits: Callable[[int], bool]) -> int:
    """The largest number from 1 to `highest` that fits, as all smaller ones do; 0: none."""
    low, high = 0, highest
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
