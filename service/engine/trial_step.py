"""A step on trial: batches that touch no block of a sequence, and one small enough to measure.

At the start a step is computed to see whether it takes no more than `StepMemory` says. The
largest one would take seconds on a CPU, with 512 tokens at a context of 8,192 about 0.2 s for
each of 30 layers. Layers take their memory one after another, so one is enough, and the size is
cut until the step is a matter of 0.1 s: what is tested is the bound, which then says what the
largest step takes.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from service.engine.runner import StepBatch
from service.models.activations import StepShape
from service.models.config import ModelConfig

# Multiplications and additions of the step that is measured: 0.1 s on two cores of 2020.
_OPERATIONS = 4e9


def trial_shape(config: ModelConfig, largest: StepShape) -> StepShape:
    """A prefill chunk of one sequence like that of the largest step, within the budget.

    Tokens are cut first: memory grows with the context too, and faster than time does.
    """
    tokens = min(largest.tokens, largest.context_tokens)
    shape = StepShape(tokens, 1, 1, largest.context_tokens)
    while _operations(config, shape) > _OPERATIONS and shape.context_tokens > 1:
        if shape.tokens > min(64, shape.context_tokens // 2):
            shape = replace(shape, tokens=max(1, shape.tokens // 2))
        else:
            shape = replace(shape, context_tokens=shape.context_tokens // 2)
    return shape


def null_batch(shape: StepShape, block_tokens: int, token_id: int) -> StepBatch:
    """A step of one sequence in the null block, which no sequence ever reads."""
    tokens, context = shape.tokens, shape.context_tokens
    return StepBatch(
        token_ids=np.full(tokens, token_id, np.int32),
        positions=np.arange(context - tokens, context, dtype=np.int32),
        slots=np.arange(tokens, dtype=np.int64) % block_tokens,
        query_starts=np.array([0, tokens], np.int32),
        context_lens=np.array([context], np.int32),
        block_tables=np.zeros((1, -(-context // block_tokens)), np.int32),
        logit_rows=np.arange(tokens - shape.logit_rows, tokens, dtype=np.int32),
    )


def _operations(config: ModelConfig, shape: StepShape) -> float:
    """Of one layer, attention included, and the output head."""
    head = config.vocab_size * config.hidden_size
    layer = (config.parameters - head) / config.layers
    attention = 2 * shape.context_tokens * config.heads * config.head_dim
    return 2.0 * (shape.tokens * (layer + attention) + shape.logit_rows * head)
