"""The Llama family over packed batches: T tokens of any number of sequences, no padding.

RMSNorm, rotary embedding, grouped-query attention and SwiGLU, with the options that set
Llama, Mistral, Qwen2 and Qwen3 apart. The weights of q, k and v, and of gate and up, are
fused into one matrix product each. The residual stream, norms, rotations and attention are
float32; a `Linear` answers in the type that suits its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from kvcache.attention.cpu import AttentionPlan, CpuAttention
from service.models.config import ModelConfig
from service.models.torch_linear import Linear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer. Norms are float32 [hidden] or [head_dim]."""

    attention_norm: Tensor
    qkv: Linear  # hidden -> (heads + 2 * kv_heads) * head_dim
    query_norm: Tensor | None
    key_norm: Tensor | None
    attention_output: Linear  # heads * head_dim -> hidden
    mlp_norm: Tensor
    gate_up: Linear  # hidden -> 2 * intermediate
    down: Linear  # intermediate -> hidden


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All weights, and the RoPE table."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear  # hidden -> vocab
    rope: Tensor  # float32 [context, 2, head_dim]: cos; sin, its first half negated


def rope_table(frequencies: Tensor, context_tokens: int, attention_factor: float) -> Tensor:
    """cos and sin of every position, float32 [context, 2, head_dim].

    Rotation of (x1, x2) is (x1 cos - x2 sin, x2 cos + x1 sin): with the sign kept in the
    table it is x * cos + swap(x) * sin.
    """
    angles = torch.outer(torch.arange(context_tokens, dtype=torch.float32), frequencies)
    cos, sin = angles.cos(), angles.sin()
    table = torch.stack([torch.cat([cos, cos], 1), torch.cat([-sin, sin], 1)], 1)
    return table * attention_factor


class Llama:
    """The forward pass."""

    def __init__(
        self,
        config: ModelConfig,
        weights: LlamaWeights,
        attention: CpuAttention,
    ) -> None:
        self._config = config
        self._weights = weights
        self._attention = attention

    def forward(
        self, token_ids: Tensor, positions: Tensor, plan: AttentionPlan, logit_rows: Tensor
    ) -> Tensor:
        """Next-token logits, float32 [R, vocab], of the rows `logit_rows` of T tokens."""
        weights, eps = self._weights, self._config.rms_norm_eps
        rotation = weights.rope[positions].unsqueeze(2).unbind(1)
        x = weights.embedding[token_ids].float()
        for index, layer in enumerate(weights.layers):
            x = x + self._attend(
                index, layer, rms_norm(x, layer.attention_norm, eps), rotation, plan
            )
            x = x + _mlp(layer, rms_norm(x, layer.mlp_norm, eps))
        return weights.head(rms_norm(x[logit_rows], weights.final_norm, eps)).float()

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        x: Tensor,
        rotation: tuple[Tensor, ...],
        plan: AttentionPlan,
    ) -> Tensor:
        config = self._config
        heads, kv_heads = config.heads, config.kv_heads
        qkv = layer.qkv(x).view(len(x), heads + 2 * kv_heads, config.head_dim)
        query_key = qkv[:, : heads + kv_heads].float()
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = query_key.tensor_split([heads], 1)
            query_key = torch.cat(
                [
                    rms_norm(query, layer.query_norm, config.rms_norm_eps),
                    rms_norm(key, layer.key_norm, config.rms_norm_eps),
                ],
                1,
            )
        cos, sin = rotation
        rotated = torch.addcmul(query_key * cos, query_key.roll(config.head_dim // 2, -1), sin)
        query, key = rotated.tensor_split([heads], 1)
        value = qkv[:, heads + kv_heads :].float()
        self._attention.write(plan, index, torch.stack([key, value], 1))
        attended = self._attention.attend(plan, index, query)
        return layer.attention_output(attended.view(len(x), -1))


def _mlp(layer: LayerWeights, x: Tensor) -> Tensor:
    gate, up = layer.gate_up(x).chunk(2, -1)
    return layer.down(F.silu(gate) * up)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019) over the last dimension, in float32."""
    return F.rms_norm(x.float(), weight.shape, weight, eps)
