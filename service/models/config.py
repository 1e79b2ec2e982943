"""What a model is: the numbers that its code needs, read from config.json or GGUF metadata."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from pathlib import Path

from service.models.fields import Fields
from service.models.gguf_metadata import GgufHeader, read_gguf_header
from service.models.rope import RopeConfig, rope_from_gguf, rope_from_hf
from service.models.source import ModelKind, ModelSource

_MAX_LAYERS = 4096
_MAX_WIDTH = 1 << 20


class Architecture(enum.Enum):
    """The families that `torch_llama` computes; values are Hugging Face `model_type`s."""

    LLAMA = "llama"
    MISTRAL = "mistral"
    QWEN2 = "qwen2"
    QWEN3 = "qwen3"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder of the Llama family: RMSNorm, RoPE, grouped-query attention, SwiGLU."""

    architecture: Architecture
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    context_tokens: int  # the longest context that the model was made for
    rope: RopeConfig
    tied_embeddings: bool
    qkv_bias: bool
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    qk_norm: bool  # RMSNorm over each query and key head, before RoPE
    rope_frequency_factors: bool  # GGUF: a `rope_freqs` tensor divides the frequencies
    interleaved_rope: bool  # GGUF llama: q and k rows are stored for rotation of neighbours
    bos_id: int | None
    eos_ids: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Weights of all matrix products, the output head included."""
        attention = (2 * self.heads + 2 * self.kv_heads) * self.head_dim
        layer = self.hidden_size * (attention + 3 * self.intermediate_size)
        return self.layers * layer + self.vocab_size * self.hidden_size


def load_model_config(source: ModelSource) -> ModelConfig:
    """Reads the configuration of a model. Raises ModelFileError."""
    if source.kind is ModelKind.GGUF:
        return config_from_gguf(source.path, read_gguf_header(source.path))
    return config_from_hf(source.path / "config.json")


def config_from_hf(path: Path) -> ModelConfig:
    """Reads a Hugging Face config.json, and the EOS ids of generation_config.json beside it."""
    config = Fields.from_json_file(path)
    architecture = _architecture(config, "model_type")
    if config.text("hidden_act", "silu") != "silu":
        raise config.error("hidden_act", "only silu is supported")
    hidden = config.integer("hidden_size", high=_MAX_WIDTH)
    heads = config.integer("num_attention_heads", high=hidden)
    vocab = config.integer("vocab_size")
    context = config.integer("max_position_embeddings", 2048)
    is_qwen2 = architecture is Architecture.QWEN2
    attention_bias = config.flag("attention_bias", False)
    model = ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size", high=_MAX_WIDTH),
        layers=config.integer("num_hidden_layers", high=_MAX_LAYERS),
        heads=heads,
        kv_heads=config.integer("num_key_value_heads", heads, high=heads),
        head_dim=config.integer("head_dim", hidden // heads, high=_MAX_WIDTH),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6, low=0.0, high=1.0),
        context_tokens=_without_window(config, architecture, context),
        rope=rope_from_hf(config, context),
        tied_embeddings=config.flag("tie_word_embeddings", False),
        qkv_bias=is_qwen2 or attention_bias,
        output_bias=attention_bias and not is_qwen2,
        mlp_bias=config.flag("mlp_bias", False),
        qk_norm=architecture is Architecture.QWEN3,
        rope_frequency_factors=False,
        interleaved_rope=False,
        bos_id=next(iter(config.token_ids("bos_token_id", vocab)), None),
        eos_ids=config.token_ids("eos_token_id", vocab),
    )
    _check_heads(config, model, "num_key_value_heads", "head_dim")
    generation_path = path.parent / "generation_config.json"
    if generation_path.is_file():
        generation = Fields.from_json_file(generation_path)
        eos_ids = generation.token_ids("eos_token_id", vocab)
        model = replace(model, eos_ids=tuple(dict.fromkeys(model.eos_ids + eos_ids)))
    return model


def config_from_gguf(path: Path, header: GgufHeader) -> ModelConfig:
    """Reads GGUF metadata; which biases exist is told by the list of tensors."""
    general = Fields(path, header.metadata)
    architecture = _architecture(general, "general.architecture")
    if architecture is Architecture.MISTRAL:
        raise general.error("general.architecture", "Mistral models are `llama` in GGUF files")
    config = Fields(path, header.metadata, f"{architecture.value}.")
    tensors = header.tensors
    hidden = config.integer("embedding_length", high=_MAX_WIDTH)
    heads = config.integer("attention.head_count", high=hidden)
    head_dim = config.integer("attention.key_length", hidden // heads, high=_MAX_WIDTH)
    if config.integer("attention.value_length", head_dim) != head_dim:
        raise config.error("attention.value_length", f"must equal the key length {head_dim}")
    tokenizer = Fields(path, header.metadata, "tokenizer.ggml.")
    vocab = config.integer("vocab_size") if config.has("vocab_size") else tokenizer.length("tokens")
    context = config.integer("context_length")
    window = config.integer("attention.sliding_window", 0, low=0)
    model = ModelConfig(
        architecture=architecture,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=config.integer("feed_forward_length", high=_MAX_WIDTH),
        layers=config.integer("block_count", high=_MAX_LAYERS),
        heads=heads,
        kv_heads=config.integer("attention.head_count_kv", heads, high=heads),
        head_dim=head_dim,
        rms_norm_eps=config.number("attention.layer_norm_rms_epsilon", low=0.0, high=1.0),
        context_tokens=min(context, window) if window else context,
        rope=rope_from_gguf(config, head_dim, context),
        tied_embeddings="output.weight" not in tensors,
        qkv_bias="blk.0.attn_q.bias" in tensors,
        output_bias="blk.0.attn_output.bias" in tensors,
        mlp_bias="blk.0.ffn_up.bias" in tensors,
        qk_norm="blk.0.attn_q_norm.weight" in tensors,
        rope_frequency_factors="rope_freqs.weight" in tensors,
        interleaved_rope=architecture is Architecture.LLAMA,
        bos_id=next(iter(tokenizer.token_ids("bos_token_id", vocab)), None),
        eos_ids=tokenizer.token_ids("eos_token_id", vocab),
    )
    _check_heads(config, model, "attention.head_count_kv", "attention.key_length")
    return model


def _architecture(config: Fields, field: str) -> Architecture:
    try:
        return Architecture(config.text(field))
    except ValueError:
        known = ", ".join(architecture.value for architecture in Architecture)
        raise config.error(field, f"not supported (supported: {known})") from None


def _without_window(config: Fields, architecture: Architecture, context_tokens: int) -> int:
    """The context up to which sliding-window attention is the same as full attention.

    There is no sliding window here; a model that has one is served within its window.
    """
    uses_window = config.flag("use_sliding_window", architecture is Architecture.MISTRAL)
    if not uses_window or not config.has("sliding_window"):
        return context_tokens
    return min(context_tokens, config.integer("sliding_window"))


def _check_heads(config: Fields, model: ModelConfig, kv_field: str, dim_field: str) -> None:
    if model.heads % model.kv_heads:
        raise config.error(kv_field, f"must divide the {model.heads} query heads")
    if model.head_dim % 2:
        raise config.error(dim_field, "must be even: RoPE rotates pairs")
