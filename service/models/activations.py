"""What a step takes beyond weights and KV pool: an upper bound, from shapes alone. Pure.

It follows `service.models.torch_llama` and `kvcache.attention.cpu` operator by operator, sums
what is alive at the three places where most is (attention, MLP, logits) and takes the largest.
Layers come one after another, so that their number does not matter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from service.models.config import ModelConfig

_FLOAT32, _BFLOAT16, _INT64 = 4, 2, 8
# What attention gathers at a time for decoding, see `kvcache.attention.cpu.GROUP_TOKENS`.
_GROUP_TOKENS = 4096
# Buffers within operators: scores of attention for each thread, operands of oneDNN.
_THREAD_BYTES = 1 << 20
_OPERATOR_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the memory of a step depends on."""

    tokens: int  # computed in the step
    sequences: int  # that they belong to
    logit_rows: int
    context_tokens: int  # of the longest sequence


@dataclass(frozen=True, slots=True)
class StepMemory:
    """How much one model takes for a step, in one way of computing it."""

    config: ModelConfig
    kv_number_bytes: int  # of one number in the KV pool
    threads: int
    factor: float = 1.0  # what a step has taken, measured, per byte of the bound, if more

    def step_bytes(self, shape: StepShape) -> int:
        """At most this many bytes are taken at any time of a step; monotonic in every number.

        Matrix products count with float32 operands, which bfloat16 weights may need as well.
        """
        config = self.config
        hidden, inner, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
        query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
        qkv = query + 2 * kv
        tokens, rows = shape.tokens, shape.logit_rows
        # Over the whole step: the residual stream and its sum, cos and sin of every head.
        stream = tokens * (2 * hidden + 2 * qkv)
        # Norm, padded input, product; normalised heads; turned in three steps; K and V for the
        # pool; attended, in the order of the operator and in ours; padded; projected.
        attention = tokens * (hidden + (5 if config.qk_norm else 4) * qkv + 2 * kv + 2 * query)
        attention += most_padded_rows(tokens) * (2 * hidden + query)
        # Norm, padded input; gate and up; silu; its product with up, padded; projected.
        mlp = tokens * (hidden + 2 * inner)
        mlp += most_padded_rows(tokens) * (2 * hidden + 3 * inner)
        # Rows, norms, padded input; product, in bfloat16 as well where weights are.
        logits = _FLOAT32 * (rows * 3 * hidden + most_padded_rows(rows) * (hidden + vocab))
        logits += _BFLOAT16 * rows * vocab
        # K and V of a group or a chunk, as in the pool and as float32, kept for the next one; a
        # larger one comes before the smaller one goes. The mask of a chunk as float32.
        in_group = min(_GROUP_TOKENS, shape.sequences * shape.context_tokens)
        gathered = 2 * max(in_group, shape.context_tokens) * kv
        attention += gathered + tokens * shape.context_tokens
        scratch = gathered * (self.kv_number_bytes + _FLOAT32)
        operators = _OPERATOR_BYTES + self.threads * _THREAD_BYTES
        stays = _FLOAT32 * stream + _plan_bytes(shape) + scratch + operators
        return math.ceil(self.factor * (stays + max(_FLOAT32 * attention, _FLOAT32 * mlp, logits)))

    def corrected(self, shape: StepShape, measured_bytes: int) -> StepMemory:
        """The same, raised where a step of this shape has taken more than was said."""
        excess = measured_bytes / self.step_bytes(shape)
        return replace(self, factor=self.factor * max(1.0, excess))


def most_padded_rows(rows: int) -> int:
    """At least what `torch_linear.padded_rows` answers; its steps are 8, 16 and 64 rows."""
    return rows + min(64, 8 + rows // 4)


def _plan_bytes(shape: StepShape) -> int:
    """Rows to gather for every sequence, bias of the scores, masks of chunks."""
    gathered = shape.sequences * shape.context_tokens
    return gathered * (2 * _INT64 + _FLOAT32) + shape.tokens * (shape.context_tokens + 2 * _INT64)
