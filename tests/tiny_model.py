"""A Hugging Face folder with a tiny Llama of random weights, without torch or transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

VOCAB_SIZE = 96
CONTEXT_TOKENS = 256
_LAYERS, _HIDDEN, _INNER, _HEADS, _KV_HEADS = 3, 32, 48, 4, 2


def write_tiny_llama(folder: Path, seed: int = 5) -> None:
    """Weights so wide that the most likely token is never a close call."""
    rng = np.random.default_rng(seed)
    head_dim = _HIDDEN // _HEADS
    config = {
        "model_type": "llama",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": _HIDDEN,
        "intermediate_size": _INNER,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "max_position_embeddings": CONTEXT_TOKENS,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    shapes = {
        "model.embed_tokens": (VOCAB_SIZE, _HIDDEN),
        "model.norm": (_HIDDEN,),
        "lm_head": (VOCAB_SIZE, _HIDDEN),
    }
    for layer in range(_LAYERS):
        name = f"model.layers.{layer}"
        shapes |= {
            f"{name}.input_layernorm": (_HIDDEN,),
            f"{name}.post_attention_layernorm": (_HIDDEN,),
            f"{name}.self_attn.q_proj": (_HEADS * head_dim, _HIDDEN),
            f"{name}.self_attn.k_proj": (_KV_HEADS * head_dim, _HIDDEN),
            f"{name}.self_attn.v_proj": (_KV_HEADS * head_dim, _HIDDEN),
            f"{name}.self_attn.o_proj": (_HIDDEN, _HEADS * head_dim),
            f"{name}.mlp.gate_proj": (_INNER, _HIDDEN),
            f"{name}.mlp.up_proj": (_INNER, _HIDDEN),
            f"{name}.mlp.down_proj": (_HIDDEN, _INNER),
        }
    weights = {
        f"{name}.weight": (
            rng.uniform(0.5, 1.5, shape) if len(shape) == 1 else rng.normal(0.0, 0.3, shape)
        ).astype(np.float32)
        for name, shape in shapes.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
