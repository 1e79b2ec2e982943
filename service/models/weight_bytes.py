"""What the weights of a model take in memory, from its configuration. Pure."""

from __future__ import annotations

from service.models.config import ModelConfig

_FLOAT32 = 4


def weight_bytes(
    config: ModelConfig, number_bytes: int, *, plain: bool, packed: bool, context_tokens: int
) -> int:
    """Bytes of all tensors that `torch_weights.WeightLoader` answers.

    `number_bytes` is the size of one weight as it is read; `plain` and `packed` say which
    copies of the matrices are kept, see `torch_linear.LinearMode`. The table of rotations has
    `context_tokens` positions.
    """
    matrices = config.parameters * (number_bytes * plain + _FLOAT32 * packed)
    # The embedding is read row by row, in the type of the weights. The plain copy of a tied
    # output head is the same tensor.
    is_shared = config.tied_embeddings and plain
    embedding = 0 if is_shared else config.vocab_size * config.hidden_size * number_bytes
    norms = (2 * config.layers + 1) * config.hidden_size
    rotations = context_tokens * 2 * config.head_dim
    return matrices + embedding + _FLOAT32 * (norms + rotations)
