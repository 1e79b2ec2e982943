"""The Llama family over packed batches: T tokens of any number of sequences, no padding.

RMSNorm, rotary embedding, grouped-query attention and SwiGLU, with the options that set
Llama, Mistral, Qwen2 and Qwen3 apart. The weights of q, k and v, and of gate and up, are
fused into one matrix product each. The residual stream, norms, rotations and attention are
float32; a `Linear` answers in the type that suits its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

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
        on_layer: Callable[[], None],
    ) -> None:
        """`on_layer` is called after each layer of a forward pass."""
        self._config = config
        self._weights = weights
        self._attention = attention
        self._on_layer = on_layer
        self._eps = torch.tensor(config.rms_norm_eps, dtype=torch.float32)

    def forward(
        self, token_ids: Tensor, positions: Tensor, plan: AttentionPlan, logit_rows: Tensor
    ) -> Tensor:
        """Next-token logits, float32 [R, vocab], of the rows `logit_rows` of T tokens."""
        weights, eps = self._weights, self._eps
        rotation = self._rotation(positions)
        x = weights.embedding[token_ids].float()
        for index, layer in enumerate(weights.layers):
            x = x + self._attend(
                index, layer, rms_norm(x, layer.attention_norm, eps), rotation, plan
            )
            x = x + _mlp(layer, rms_norm(x, layer.mlp_norm, eps))
            self._on_layer()
        return weights.head(rms_norm(x[logit_rows], weights.final_norm, eps)).float()

    def one_layer(self, attention: CpuAttention) -> Llama:
        """The first layer alone, between embedding and head, over the same weights."""
        weights = replace(self._weights, layers=self._weights.layers[:1])
        return Llama(self._config, weights, attention, self._on_layer)

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for the fused rows of q, k and v, [T, heads + 2 * kv_heads, head_dim].

        The heads of v are turned by nothing, so that all of a row is rotated at once.
        """
        config = self._config
        cos, sin = self._weights.rope[positions].unsqueeze(2).unbind(1)
        shape = (len(positions), config.kv_heads, config.head_dim)
        heads = (-1, config.heads + config.kv_heads, -1)
        return (
            torch.cat([cos.expand(heads), torch.ones(shape)], 1),
            torch.cat([sin.expand(heads), torch.zeros(shape)], 1),
        )

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        x: Tensor,
        rotation: tuple[Tensor, Tensor],
        plan: AttentionPlan,
    ) -> Tensor:
        config = self._config
        heads, kv_heads = config.heads, config.kv_heads
        qkv = layer.qkv(x).view(len(x), heads + 2 * kv_heads, config.head_dim).float()
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key, value = qkv.tensor_split([heads, heads + kv_heads], 1)
            query = rms_norm(query, layer.query_norm, self._eps)
            qkv = torch.cat([query, rms_norm(key, layer.key_norm, self._eps), value], 1)
        cos, sin = rotation
        qkv = torch.addcmul(qkv * cos, qkv.roll(config.head_dim // 2, -1), sin)
        query, key_value = qkv.tensor_split([heads], 1)
        self._attention.write(plan, index, key_value)
        attended = self._attention.attend(plan, index, query)
        return layer.attention_output(attended.view(len(x), -1))


def _mlp(layer: LayerWeights, x: Tensor) -> Tensor:
    gate, up = layer.gate_up(x).chunk(2, -1)
    return layer.down(F.silu(gate) * up)


def rms_norm(x: Tensor, weight: Tensor, eps: Tensor) -> Tensor:
    """RMSNorm (Zhang and Sennrich 2019) over the last dimension; all float32.

    In few operators: that of torch consists of six on a CPU and takes twice as long.
    """
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * torch.addcmul(eps, norm, norm, value=1 / x.shape[-1]).rsqrt() * weight
