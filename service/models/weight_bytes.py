"""What the weights of a model take in memory, from its configuration. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from service.models.config import ModelConfig

_FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class WeightCopies:
    """In which types weights are kept, see `torch_linear.LinearMode`."""

    number_bytes: int  # of one weight as it was read
    plain: bool  # matrices of products are kept as they were read
    packed: bool  # and, or, in float32


def weight_bytes(config: ModelConfig, copies: WeightCopies, context_tokens: int) -> int:
    """Bytes of all tensors that `torch_weights.WeightLoader` answers.

    The table of rotations has `context_tokens` positions.
    """
    kept_bytes = copies.number_bytes * copies.plain + _FLOAT32 * copies.packed
    # The embedding is looked up as it was read; the plain copy of a tied head is the same tensor.
    is_shared = config.tied_embeddings and copies.plain
    embedding = 0 if is_shared else config.vocab_size * config.hidden_size * copies.number_bytes
    norms = (2 * config.layers + 1) * config.hidden_size
    rotations = context_tokens * 2 * config.head_dim
    return config.parameters * kept_bytes + embedding + _FLOAT32 * (norms + rotations)
