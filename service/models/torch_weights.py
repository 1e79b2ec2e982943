"""Builds the weights of `torch_llama` from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from service.models.config import ModelConfig
from service.models.torch_checkpoint import Checkpoint
from service.models.torch_linear import Linear, LinearMode
from service.models.torch_llama import LayerWeights, LlamaWeights, rope_table


@dataclass(frozen=True, slots=True)
class WeightLoader:
    """Reads, fuses and converts tensors; `on_layer` hears of every finished layer."""

    config: ModelConfig
    checkpoint: Checkpoint
    dtype: torch.dtype
    mode: LinearMode

    def load(self, context_tokens: int, on_layer: Callable[[int], None]) -> LlamaWeights:
        """Answers all weights, with a RoPE table of `context_tokens` positions."""
        config = self.config
        embedding = self._matrix("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        layers = []
        for index in range(config.layers):
            layers.append(self._layer(f"model.layers.{index}."))
            on_layer(index + 1)
        tied = config.tied_embeddings and not self.checkpoint.has("lm_head.weight")
        head = (
            embedding
            if tied
            else self._matrix("lm_head.weight", config.vocab_size, config.hidden_size)
        )
        return LlamaWeights(
            embedding=embedding,
            layers=tuple(layers),
            final_norm=self._norm("model.norm.weight", config.hidden_size),
            head=Linear(head, None, self.mode),
            rope=self._rope(context_tokens),
        )

    def _layer(self, prefix: str) -> LayerWeights:
        config = self.config
        hidden, inner, head_dim = config.hidden_size, config.intermediate_size, config.head_dim
        query, key = config.heads * head_dim, config.kv_heads * head_dim
        attention, mlp = f"{prefix}self_attn.", f"{prefix}mlp."
        qkv = {f"{attention}q_proj": query, f"{attention}k_proj": key, f"{attention}v_proj": key}
        gate_up = {f"{mlp}gate_proj": inner, f"{mlp}up_proj": inner}
        return LayerWeights(
            attention_norm=self._norm(f"{prefix}input_layernorm.weight", hidden),
            qkv=self._linear(qkv, hidden, config.qkv_bias),
            query_norm=self._norm(f"{attention}q_norm.weight", head_dim)
            if config.qk_norm
            else None,
            key_norm=self._norm(f"{attention}k_norm.weight", head_dim) if config.qk_norm else None,
            attention_output=self._linear(
                {f"{attention}o_proj": hidden}, query, config.output_bias
            ),
            mlp_norm=self._norm(f"{prefix}post_attention_layernorm.weight", hidden),
            gate_up=self._linear(gate_up, hidden, config.mlp_bias),
            down=self._linear({f"{mlp}down_proj": hidden}, inner, config.mlp_bias),
        )

    def _linear(self, parts: dict[str, int], inputs: int, has_bias: bool) -> Linear:
        """One product for several projections of the same input; name -> number of outputs."""
        weight = torch.cat(
            [self._matrix(f"{name}.weight", outputs, inputs) for name, outputs in parts.items()]
        )
        bias = None
        if has_bias:
            read = self.checkpoint.read
            bias = torch.cat(
                [read(f"{n}.bias", (size,)).to(self.dtype) for n, size in parts.items()]
            )
        return Linear(weight, bias, self.mode)

    def _matrix(self, name: str, rows: int, columns: int) -> Tensor:
        return self.checkpoint.read(name, (rows, columns)).to(self.dtype)

    def _norm(self, name: str, size: int) -> Tensor:
        return self.checkpoint.read(name, (size,)).to(self.dtype).float()

    def _rope(self, context_tokens: int) -> Tensor:
        rope = self.config.rope
        frequencies = torch.from_numpy(rope.frequencies(self.config.head_dim))
        if self.config.rope_frequency_factors:
            factors = self.checkpoint.read("rope_freqs.weight", (self.config.head_dim // 2,))
            frequencies = frequencies / factors
        return rope_table(frequencies, context_tokens, rope.attention_factor)
