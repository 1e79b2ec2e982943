"""Reads the header of a GGUF file: metadata and the list of tensors, no tensor data.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little
endian. A header with a 50,000-token vocabulary takes some 50 ms here; the `gguf` package,
which makes numpy views of every field, takes seconds. Nothing in the file is trusted:
every count is checked against the bytes that are left before anything is built from it.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from service.models.errors import ModelFileError

_MAGIC = b"GGUF"
_MAX_KEY_BYTES = 65_535  # of the specification
_MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
_MAX_ARRAY_ITEMS = 1 << 24  # sixteen million: no vocabulary comes near it
_MAX_ARRAY_DEPTH = 2
_DEFAULT_ALIGNMENT_BYTES = 32

_STRING = 8
_ARRAY = 9
_SCALAR_TYPES: dict[int, np.dtype[np.generic]] = {
    0: np.dtype("<u1"),
    1: np.dtype("<i1"),
    2: np.dtype("<u2"),
    3: np.dtype("<i2"),
    4: np.dtype("<u4"),
    5: np.dtype("<i4"),
    6: np.dtype("<f4"),
    7: np.dtype("?"),
    10: np.dtype("<u8"),
    11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}
_MIN_METADATA_BYTES = 8 + 4 + 1  # empty key, type, one byte
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8  # empty name, one dimension


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One entry of the tensor list."""

    name: str
    shape: tuple[int, ...]  # outermost dimension first, as numpy has it
    type_id: int  # GGMLQuantizationType
    offset_bytes: int  # from the start of the file


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """All that a GGUF file says before its tensor data."""

    version: int
    metadata: dict[str, object]  # int, float, bool, str, or a list of these
    tensors: dict[str, GgufTensor]
    header_bytes: int


def read_gguf_metadata(path: Path) -> dict[str, object]:
    """Answers the metadata alone. Raises ModelFileError."""
    return read_gguf_header(path).metadata


def read_gguf_header(path: Path) -> GgufHeader:
    """Reads metadata and tensor list; raises ModelFileError for a file that breaks the format.

    That tensor data lies within the file is checked when the tensors are read: how long a
    tensor is depends on its type.
    """
    if path.stat().st_size == 0:
        raise ModelFileError(path, "file size", 0, "the file is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _Reader(path, data).header()


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def header(self) -> GgufHeader:
        magic = self._take(4, "magic")
        if magic != _MAGIC:
            raise self._error("magic", magic, "not a GGUF file")
        version = self._u32("version")
        if version not in (2, 3):
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
            reason = "a big-endian file" if swapped in (2, 3) else "only versions 2 and 3 are read"
            raise self._error("version", version, reason)
        tensor_count = self._count("tensor_count", _MIN_TENSOR_BYTES)
        metadata_count = self._count("metadata_kv_count", _MIN_METADATA_BYTES)

        metadata: dict[str, object] = {}
        for _ in range(metadata_count):
            key = self._string("metadata key", _MAX_KEY_BYTES)
            if key in metadata:
                raise self._error("metadata key", key, "occurs twice")
            metadata[key] = self._value(self._u32(key), key)
        tensors: dict[str, GgufTensor] = {}
        for _ in range(tensor_count):
            tensor = self._tensor()
            if tensor.name in tensors:
                raise self._error("tensor name", tensor.name, "occurs twice")
            tensors[tensor.name] = tensor
        return self._placed(version, metadata, tensors)

    def _placed(
        self, version: int, metadata: dict[str, object], tensors: dict[str, GgufTensor]
    ) -> GgufHeader:
        """Turns offsets into the data section into offsets into the file."""
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise self._error("general.alignment", alignment, "must be a multiple of 8")
        start = -(-self._at // alignment) * alignment
        placed: dict[str, GgufTensor] = {}
        for name, tensor in tensors.items():
            if tensor.offset_bytes % alignment:
                raise self._error(
                    f"offset of {name}", tensor.offset_bytes, f"not a multiple of {alignment}"
                )
            offset = start + tensor.offset_bytes
            if offset >= self._size:
                raise self._error(
                    f"offset of {name}",
                    tensor.offset_bytes,
                    f"behind the end of the file ({self._size} bytes): is the file truncated?",
                )
            placed[name] = GgufTensor(name, tensor.shape, tensor.type_id, offset)
        return GgufHeader(version, metadata, placed, self._at)

    def _tensor(self) -> GgufTensor:
        name = self._string("tensor name", _MAX_KEY_BYTES)
        dimensions = self._u32(f"dimensions of {name}")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._error(
                f"dimensions of {name}", dimensions, f"must be 1 to {_MAX_DIMENSIONS}"
            )
        shape = tuple(self._u64(f"shape of {name}") for _ in range(dimensions))
        if any(size == 0 or size > 1 << 40 for size in shape):
            raise self._error(f"shape of {name}", shape, "sizes must be 1 to 2^40")
        type_id = self._u32(f"type of {name}")
        return GgufTensor(name, shape[::-1], type_id, self._u64(f"offset of {name}"))

    def _value(self, type_id: int, key: str, depth: int = 0) -> object:
        if type_id == _STRING:
            return self._string(key, self._size)
        if type_id == _ARRAY:
            return self._array(key, depth + 1)
        dtype = self._dtype(type_id, key)
        return np.frombuffer(self._take(dtype.itemsize, key), dtype)[0].item()

    def _array(self, key: str, depth: int) -> list[object]:
        if depth > _MAX_ARRAY_DEPTH:
            raise self._error(key, depth, f"arrays nest deeper than {_MAX_ARRAY_DEPTH}")
        type_id = self._u32(key)
        if type_id in (_STRING, _ARRAY):
            item_bytes = 8 if type_id == _STRING else 12
            count = self._count(f"length of {key}", item_bytes, _MAX_ARRAY_ITEMS)
            return [self._value(type_id, key, depth) for _ in range(count)]
        dtype = self._dtype(type_id, key)
        count = self._count(f"length of {key}", dtype.itemsize, _MAX_ARRAY_ITEMS)
        items: list[object] = np.frombuffer(self._take(count * dtype.itemsize, key), dtype).tolist()
        return items

    def _dtype(self, type_id: int, key: str) -> np.dtype[np.generic]:
        dtype = _SCALAR_TYPES.get(type_id)
        if dtype is None:
            raise self._error(f"type of {key}", type_id, "no such GGUF value type")
        return dtype

    def _count(self, field: str, item_bytes: int, limit: int | None = None) -> int:
        """A count of items that each need at least `item_bytes` of what is left."""
        count = self._u64(field)
        room = (self._size - self._at) // item_bytes
        if count > room:
            raise self._error(field, count, f"the file has room for {room} at most")
        if limit is not None and count > limit:
            raise self._error(field, count, f"the limit is {limit}")
        return count

    def _string(self, field: str, limit_bytes: int) -> str:
        length = self._u64(field)
        if length > limit_bytes:
            raise self._error(f"length of {field}", length, f"the limit is {limit_bytes} bytes")
        raw = self._take(length, field)
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._error(field, raw[:64], f"not UTF-8: {error.reason}") from error

    def _u32(self, field: str) -> int:
        value: int = struct.unpack("<I", self._take(4, field))[0]
        return value

    def _u64(self, field: str) -> int:
        value: int = struct.unpack("<Q", self._take(8, field))[0]
        return value

    def _take(self, length: int, field: str) -> bytes:
        end = self._at + length
        if end > self._size:
            raise self._error(
                field, length, f"{length} bytes wanted, {self._size - self._at} left: truncated?"
            )
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _error(self, field: str, value: object, reason: str) -> ModelFileError:
        return ModelFileError(self._path, field, value, reason)
