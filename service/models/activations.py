"""What a step takes beyond weights and KV pool: an upper bound, from shapes alone. Pure.

It follows `service.models.torch_llama` and `kvcache.attention.cpu` operator by operator, sums
what is alive at the three places where most is (attention, MLP, logits) and takes the largest.
Layers come one after another, so that their number does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.models.config import ModelConfig

_FLOAT32, _INT64 = 4, 8
# Rows that packed products are padded to, see `torch_linear.padded_rows`.
_PADDING_ROWS = 64
# What attention gathers at a time for decoding, see `kvcache.attention.cpu.GROUP_TOKENS`.
_GROUP_TOKENS = 4096
# Buffers of the operators themselves: blocks of scores for every thread, packed operands.
_OPERATOR_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the memory of a step depends on."""

    tokens: int  # computed in the step
    sequences: int  # that they belong to
    logit_rows: int
    context_tokens: int  # of the longest sequence


def step_bytes(config: ModelConfig, kv_bytes: int, shape: StepShape) -> int:
    """At most this many bytes are taken at any time of a step; monotonic in every number.

    `kv_bytes` is the size of a number in the KV pool. Matrix products count with float32
    operands, which bfloat16 weights may need as well.
    """
    hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    qkv = query + 2 * kv
    tokens, rows = shape.tokens, shape.logit_rows
    padded_tokens, padded_rows = tokens + _PADDING_ROWS, rows + _PADDING_ROWS
    # Over the whole step: the residual stream and its sum, cos and sin of every head.
    stream = tokens * (2 * hidden + 2 * qkv)
    # Norm, padded input, product; normalised heads; turned in three steps; K and V for the
    # pool; attended, in the order of the operator and in ours; padded; projected.
    attention = tokens * (hidden + (5 if config.qk_norm else 4) * qkv + 2 * kv + 2 * query)
    attention += padded_tokens * (2 * hidden + query)
    # Norm, padded input; gate and up; silu; its product with up, padded; projected.
    mlp = tokens * (hidden + 2 * inner) + padded_tokens * (2 * hidden + 3 * inner)
    # Rows, norms, padded input; product, and logits in float32.
    logits = rows * (3 * hidden + vocab) + padded_rows * (hidden + vocab)
    largest = max(
        _FLOAT32 * attention + _scratch_bytes(kv, kv_bytes, shape), _FLOAT32 * max(mlp, logits)
    )
    return _FLOAT32 * stream + _plan_bytes(shape) + largest + _OPERATOR_BYTES


def _plan_bytes(shape: StepShape) -> int:
    """Rows to gather for every sequence, bias of the scores, masks of chunks."""
    gathered = shape.sequences * shape.context_tokens
    return gathered * (2 * _INT64 + _FLOAT32) + shape.tokens * (shape.context_tokens + 2 * _INT64)


def _scratch_bytes(kv_width: int, kv_bytes: int, shape: StepShape) -> int:
    """K and V of a group or a chunk, as in the pool and as float32, and its mask as float32."""
    gathered = 2 * max(_GROUP_TOKENS, shape.context_tokens) * kv_width
    mask = shape.tokens * shape.context_tokens
    return gathered * (kv_bytes + _FLOAT32) + mask * _FLOAT32
