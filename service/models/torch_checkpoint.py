"""Reads tensors by their Hugging Face names, from safetensors or from a GGUF file."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
from pathlib import Path
from typing import Protocol

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from safetensors import SafetensorError, safe_open
from torch import Tensor

from service.models.config import ModelConfig
from service.models.errors import ModelFileError
from service.models.gguf_metadata import GgufTensor, read_gguf_header
from service.models.source import ModelKind, ModelSource

_FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)


class Checkpoint(Protocol):
    """Named tensors on disk."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds this tensor."""
        ...

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Answers a tensor in a floating type of its own; raises ModelFileError."""
        ...

    def version(self) -> str:
        """Digest of headers and sizes (blake2b, 16 hex digits); tensor data is not read."""
        ...


def open_checkpoint(source: ModelSource, config: ModelConfig) -> Checkpoint:
    """Opens the weights of a model. Raises ModelFileError."""
    if source.kind is ModelKind.GGUF:
        return GgufCheckpoint(source.path, config)
    return SafetensorsCheckpoint(source.path)


class SafetensorsCheckpoint:
    """One model.safetensors, or shards with an index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = self._weight_map()
        self._open: dict[str, safe_open] = {}

    def has(self, name: str) -> bool:
        return name in self._file_of

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        file_name = self._file_of.get(name)
        if file_name is None:
            raise ModelFileError(self._folder, name, None, "the tensor is missing")
        path = self._folder / file_name
        try:
            tensor: Tensor = self._file(file_name).get_tensor(name)  # type: ignore[no-untyped-call]
        except SafetensorError as error:
            raise ModelFileError(path, name, str(error), "cannot be read") from error
        if tuple(tensor.shape) != shape:
            raise ModelFileError(path, name, tuple(tensor.shape), f"the shape must be {shape}")
        if tensor.dtype not in _FLOAT_TYPES:
            raise ModelFileError(path, name, str(tensor.dtype), "must be float32, bf16 or fp16")
        return tensor

    def version(self) -> str:
        digest = hashlib.blake2b((self._folder / "config.json").read_bytes(), digest_size=8)
        for file_name in sorted(set(self._file_of.values())):
            path = self._folder / file_name
            with path.open("rb") as file:
                header_bytes = int.from_bytes(file.read(8), "little")
                digest.update(file.read(header_bytes))
            digest.update(path.stat().st_size.to_bytes(8, "little"))
        return digest.hexdigest()

    def _weight_map(self) -> dict[str, str]:
        index = self._folder / "model.safetensors.index.json"
        single = "model.safetensors"
        if not index.is_file():
            if not (self._folder / single).is_file():
                raise ModelFileError(
                    self._folder, single, None, "no such file, and no index of shards"
                )
            self._open = {}
            names: list[str] = self._open_file(single).keys()  # type: ignore[no-untyped-call]
            return dict.fromkeys(names, single)
        try:
            weight_map = json.loads(index.read_bytes())["weight_map"]
            pairs = {str(name): str(file) for name, file in weight_map.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelFileError(index, "weight_map", str(error), "cannot be read") from error
        for file_name in sorted(set(pairs.values())):
            if Path(file_name).name != file_name or not (self._folder / file_name).is_file():
                raise ModelFileError(index, "weight_map", file_name, "no such file in the folder")
        return pairs

    def _file(self, file_name: str) -> safe_open:
        if file_name not in self._open:
            self._open[file_name] = self._open_file(file_name)
        return self._open[file_name]

    def _open_file(self, file_name: str) -> safe_open:
        path = self._folder / file_name
        try:
            return safe_open(path, framework="pt")
        except SafetensorError as error:
            raise ModelFileError(path, "header", str(error), "not a safetensors file") from error


class GgufCheckpoint:
    """A GGUF file; quantised tensors are expanded as they are read."""

    def __init__(self, path: Path, config: ModelConfig) -> None:
        self._path = path
        self._config = config
        self._header = read_gguf_header(path)
        with path.open("rb") as file:
            self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def has(self, name: str) -> bool:
        return gguf_name(name) in self._header.tensors

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        stored_name = gguf_name(name)
        info = self._header.tensors.get(stored_name)
        if info is None:
            raise ModelFileError(self._path, stored_name, None, "the tensor is missing")
        if info.shape != shape:
            raise ModelFileError(self._path, stored_name, info.shape, f"the shape must be {shape}")
        values = torch.from_numpy(self._values(info).reshape(shape))
        if self._config.interleaved_rope and re.search(r"\.(q|k)_proj\.", name):
            values = _halves_from_pairs(values, self._config.head_dim)
        return values

    def version(self) -> str:
        digest = hashlib.blake2b(self._data[: self._header.header_bytes], digest_size=8)
        digest.update(len(self._data).to_bytes(8, "little"))
        return digest.hexdigest()

    def _values(self, info: GgufTensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        try:
            kind = gguf.GGMLQuantizationType(info.type_id)
        except ValueError:
            raise ModelFileError(
                self._path, f"type of {info.name}", info.type_id, "no such tensor type"
            ) from None
        items, item_bytes = gguf.GGML_QUANT_SIZES[kind]
        elements = int(np.prod(info.shape, dtype=object))
        if info.shape[-1] % items:
            raise ModelFileError(
                self._path, info.name, info.shape, f"rows of {kind.name} are multiples of {items}"
            )
        end = info.offset_bytes + elements // items * item_bytes
        if end > len(self._data):
            raise ModelFileError(
                self._path,
                info.name,
                end,
                f"the tensor ends behind the file ({len(self._data)} bytes): is it truncated?",
            )
        raw = np.frombuffer(self._data, np.uint8, end - info.offset_bytes, info.offset_bytes)
        rows = raw.reshape(*info.shape[:-1], info.shape[-1] // items * item_bytes)
        try:
            return dequantize(rows, kind).astype(np.float32)
        except NotImplementedError as error:
            raise ModelFileError(
                self._path, f"type of {info.name}", kind.name, "this quantisation is not supported"
            ) from error


_GGUF_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "rope_freqs.weight": "rope_freqs.weight",
}
_GGUF_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """`model.layers.3.mlp.up_proj.weight` is `blk.3.ffn_up.weight` in a GGUF file."""
    if name in _GGUF_NAMES:
        return _GGUF_NAMES[name]
    _, _, layer, rest = name.split(".", 3)
    part, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{_GGUF_LAYER_NAMES[part]}.{kind}"


def _halves_from_pairs(tensor: Tensor, head_dim: int) -> Tensor:
    """Orders the rows of q and k for rotation of halves.

    GGUF files of the llama architecture store them for the rotation of neighbours (x0, x1),
    (x2, x3), ...: llama.cpp's converter permutes them so. Here pair i is (xi, x(i + d/2)).
    """
    rows, *rest = tensor.shape
    paired = tensor.view(rows // head_dim, head_dim // 2, 2, *rest)
    return paired.transpose(1, 2).reshape(tensor.shape)
