"""Model sources, GGUF headers and configurations: what is read, and how bad ones are refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from service.models.config import Architecture, config_from_gguf, config_from_hf
from service.models.errors import ModelFileError
from service.models.gguf_metadata import read_gguf_header, read_gguf_metadata
from service.models.source import ModelKind, model_name, resolve_model

LLAMA = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


def write_config(folder: Path, fields: dict[str, object]) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


def write_gguf(path: Path, **changes: object) -> Path:
    writer = GGUFWriter(path, "llama")
    numbers = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": 32,
        "feed_forward_length": 64,
        "attention.head_count": 4,
        "vocab_size": 3,
    } | changes
    for name, value in numbers.items():
        writer.add_uint32(f"llama.{name}", int(str(value)))
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_array("tokenizer.ggml.tokens", ["a", "ä", "🙂"])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.0, 2.0])
    writer.add_bool("tokenizer.ggml.add_bos_token", True)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_gguf_header_is_what_was_written(tmp_path: Path) -> None:
    header = read_gguf_header(write_gguf(tmp_path / "m.gguf"))
    assert header.metadata["tokenizer.ggml.tokens"] == ["a", "ä", "🙂"]
    assert header.metadata["tokenizer.ggml.scores"] == [0.5, -1.0, 2.0]
    assert header.metadata["tokenizer.ggml.add_bos_token"] is True
    tensor = header.tensors["output_norm.weight"]
    raw = (tmp_path / "m.gguf").read_bytes()[tensor.offset_bytes :][: 4 * 32]
    np.testing.assert_array_equal(np.frombuffer(raw, np.float32), np.ones(32))


def test_every_truncation_of_a_gguf_file_is_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    header_bytes = read_gguf_header(tmp_path / "m.gguf").header_bytes
    cut = tmp_path / "cut.gguf"
    for size in range(header_bytes):
        cut.write_bytes(whole[:size])
        with pytest.raises(ModelFileError):
            read_gguf_metadata(cut)


def test_random_damage_never_raises_anything_else(tmp_path: Path) -> None:
    whole = bytearray(write_gguf(tmp_path / "m.gguf").read_bytes())
    header_bytes = read_gguf_header(tmp_path / "m.gguf").header_bytes
    rng = np.random.default_rng(3)
    hurt = tmp_path / "hurt.gguf"
    refused = 0
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(3):
            data[rng.integers(4, header_bytes)] = rng.integers(0, 256)
        hurt.write_bytes(data)
        try:
            config_from_gguf(hurt, read_gguf_header(hurt))
        except ModelFileError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1 << 60), "metadata_kv_count = 1152921504606846976"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 1 << 60, 0), "tensor_count = 1152921504606846976"),
        (struct.pack("<4sIQQ", b"GGUF", 1, 0, 0), "version = 1"),
        (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "big-endian"),
        (b"PK\x03\x04" + bytes(40), "not a GGUF file"),
        (b"", "the file is empty"),
        (
            struct.pack("<4sIQQQ1sIIQ", b"GGUF", 3, 0, 1, 1, b"k", 9, 4, 1 << 40) + bytes(64),
            "length of k = 1099511627776",
        ),
        (
            struct.pack("<4sIQQQ1sI", b"GGUF", 3, 0, 1, 1, b"k", 9) + struct.pack("<IQ", 9, 1) * 9,
            "nest deeper",
        ),
    ],
)
def test_hostile_gguf_headers_are_refused(body: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(body)
    with pytest.raises(ModelFileError) as caught:
        read_gguf_metadata(path)
    assert complaint in str(caught.value)


def test_gguf_config(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", **{"attention.head_count_kv": 2})
    config = config_from_gguf(path, read_gguf_header(path))
    assert (config.heads, config.kv_heads, config.head_dim, config.vocab_size) == (4, 2, 8, 3)
    assert config.tied_embeddings
    assert config.interleaved_rope
    assert not config.qkv_bias


def test_families_differ_as_they_should(tmp_path: Path) -> None:
    qwen2 = config_from_hf(write_config(tmp_path, LLAMA | {"model_type": "qwen2"}))
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = config_from_hf(write_config(tmp_path, LLAMA | {"model_type": "qwen3", "head_dim": 16}))
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 16)
    llama = config_from_hf(write_config(tmp_path, LLAMA | {"attention_bias": True}))
    assert (llama.qkv_bias, llama.output_bias, llama.architecture) == (
        True,
        True,
        Architecture.LLAMA,
    )


@pytest.mark.parametrize(
    ("fields", "context"),
    [
        ({"model_type": "mistral", "sliding_window": 32}, 32),
        ({"model_type": "mistral", "sliding_window": None}, 128),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": False}, 128),
        ({"model_type": "qwen2", "sliding_window": 32, "use_sliding_window": True}, 32),
    ],
)
def test_a_sliding_window_bounds_the_context(
    fields: dict[str, object], context: int, tmp_path: Path
) -> None:
    assert config_from_hf(write_config(tmp_path, LLAMA | fields)).context_tokens == context


def test_eos_ids_come_from_both_files(tmp_path: Path) -> None:
    path = write_config(tmp_path, LLAMA | {"eos_token_id": 2})
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [7, 2]}')
    assert config_from_hf(path).eos_ids == (2, 7)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"model_type": "gpt2"}, "model_type = 'gpt2': not supported (supported: llama, mistral"),
        ({"model_type": None}, "model_type: is missing"),
        ({"vocab_size": "many"}, "vocab_size = 'many': must be an integer"),
        ({"vocab_size": True}, "vocab_size = True: must be an integer"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000: must be 1 to 4096"),
        ({"num_key_value_heads": 3}, "num_key_value_heads = 3: must divide the 4 query heads"),
        ({"eos_token_id": 100}, "eos_token_id = 100: beyond the vocabulary of 100 tokens"),
        ({"eos_token_id": [1, -1]}, "eos_token_id = [1, -1]: beyond the vocabulary"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps = nan"),
    ],
)
def test_bad_configurations_are_refused(
    fields: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelFileError) as caught:
        config_from_hf(write_config(tmp_path, LLAMA | fields))
    assert complaint in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("content", [b"{", b"[1]", b"[" * 100_000])
def test_config_that_is_no_object_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError):
        config_from_hf(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("models/Qwen3-0.6B", "Qwen3-0.6B"),
        ("models/Qwen3-0.6B/", "Qwen3-0.6B"),
        ("models/tiny.Q4_K.gguf", "tiny.Q4_K"),
        ("~/TINY.GGUF", "TINY"),
    ],
)
def test_names(model: str, name: str) -> None:
    assert model_name(model) == name


def test_the_folder_one_stands_in_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "my-model"
    (folder / "part").mkdir(parents=True)
    write_config(folder, LLAMA)
    monkeypatch.chdir(folder)
    assert resolve_model(".").name == "my-model"
    monkeypatch.chdir(folder / "part")
    assert resolve_model("..").name == "my-model"


def test_sources(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="aliases: smollm2-135m"):
        resolve_model("no-such-model")
    with pytest.raises(ModelFileError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    gguf = write_gguf(tmp_path / "m.gguf")
    assert resolve_model(str(gguf)).kind is ModelKind.GGUF
    assert resolve_model(str(gguf)).name == "m"
    assert resolve_model(str(tmp_path)).path == gguf
    write_config(tmp_path, LLAMA)
    assert resolve_model(str(tmp_path)).kind is ModelKind.HF_FOLDER
