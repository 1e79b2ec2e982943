"""Where a key or a value lies in the memory of the pool."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, fields

from kvcache.errors import InvalidArgumentError


class KVDtype(enum.Enum):
    """Element type of the cache; the value is the name that torch and numpy use."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 4 if self is KVDtype.FLOAT32 else 2


@dataclass(frozen=True, slots=True)
class KVLayout:
    """Block-major layout `[block][layer][K|V][slot][kv_head][head_dim]`.

    A block over all layers is one contiguous range, so a swap, a transfer to a tier and a
    checksum are one copy, and the pool grows or shrinks at the end of one range.
    """

    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: KVDtype

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "dtype" and value < 1:
                raise InvalidArgumentError(field.name, value, "at least 1")

    @property
    def block_elements(self) -> int:
        """Elements of one block over all layers, keys and values."""
        return math.prod(self.shape(1))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers, keys and values."""
        return self.block_elements * self.dtype.itemsize

    @property
    def token_bytes(self) -> int:
        """Bytes that one token takes over all layers, keys and values."""
        return self.block_bytes // self.block_tokens

    def shape(self, num_blocks: int) -> tuple[int, int, int, int, int, int]:
        """Shape of the whole pool: (num_blocks, layers, 2, block_tokens, kv_heads, head_dim)."""
        return (num_blocks, self.layers, 2, self.block_tokens, self.kv_heads, self.head_dim)
