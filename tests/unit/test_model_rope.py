"""RoPE frequencies and their configuration fields, against transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from service.models.config import config_from_hf
from service.models.errors import ModelFileError

BASE = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 256,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 65536,
    "rope_theta": 500000.0,
}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16384},
}


def config_file(folder: Path, **fields: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(BASE | fields))
    return path


@pytest.mark.parametrize("kind", SCALINGS)
@pytest.mark.parametrize("style", ["rope_scaling", "rope_parameters"])
def test_frequencies_equal_those_of_transformers(kind: str, style: str, tmp_path: Path) -> None:
    scaling = dict(SCALINGS[kind])
    theirs = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        max_position_embeddings=65536,
        rope_parameters=scaling | {"rope_theta": 500000.0},
    )
    want, factor = ROPE_INIT_FUNCTIONS[kind](theirs, "cpu")
    if style == "rope_parameters":
        scaling["rope_theta"] = 500000.0
        path = config_file(tmp_path, rope_theta=None, rope_parameters=scaling)
    else:
        path = config_file(tmp_path, rope_scaling=scaling)
    rope = config_from_hf(path).rope
    np.testing.assert_allclose(rope.frequencies(128), want.numpy(), rtol=2e-6)
    assert rope.attention_factor == pytest.approx(factor)


@pytest.mark.parametrize(
    ("scaling", "field"),
    [
        ({"rope_type": "longrope"}, "rope_scaling.rope_type = 'longrope'"),
        ({"rope_type": "linear"}, "rope_scaling.factor: is missing"),
        ({"rope_type": "linear", "factor": "8"}, "rope_scaling.factor = '8'"),
        (SCALINGS["llama3"] | {"high_freq_factor": 0.5}, "rope_scaling.high_freq_factor = 0.5"),
        (SCALINGS["yarn"] | {"mscale": 0.7}, "rope_scaling.mscale = 0.7"),
    ],
)
def test_unusable_scaling_is_refused(scaling: object, field: str, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError) as caught:
        config_from_hf(config_file(tmp_path, rope_scaling=scaling))
    assert field in str(caught.value)
