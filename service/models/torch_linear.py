"""Matrix products of a model: one weight, up to two copies of it, chosen by row count.

torch multiplies bfloat16 fast on CPUs that have instructions for it (AVX512-BF16, AMX). On
the others a product with one row still gains from bfloat16, as it is bound by memory, but
with more rows the emulation makes it linear in the rows: 32 rows take 32 times as long. There
float32 weights, packed once by oneDNN for its own kernels, are several times faster.
"""

from __future__ import annotations

import enum

import torch
import torch.nn.functional as F
from torch import Tensor

# Rows for which oneDNN lays out packed weights; it accepts any number of rows later.
_PACKED_ROWS_HINT = 64


class LinearMode(enum.Enum):
    """Which copies of a weight are kept."""

    PLAIN = "plain"  # as given, no second copy
    # Packed float32 alone: 4 bytes per parameter. A row has the same bits among any others.
    PACKED = "packed"
    HYBRID = "hybrid"  # bfloat16 for one row, packed float32 for more: 6 bytes per parameter


def native_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 on this CPU without emulation."""
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def choose_linear_mode(
    weights_dtype: str, packed_weights: str, packed_bytes: int, limit_bytes: int
) -> LinearMode:
    """Decides by the CPU, the setting `packed_weights` (auto, on, off) and the memory there is.

    `packed_bytes` is what packed copies of all weights take, `limit_bytes` what they may take
    when the setting is auto and they come on top of the bfloat16 weights.
    """
    if packed_weights == "off" or not torch._C._has_mkldnn:
        return LinearMode.PLAIN
    if weights_dtype == "float32":
        return LinearMode.PACKED
    if packed_weights == "on":
        return LinearMode.HYBRID
    if native_bfloat16() or packed_bytes > limit_bytes:
        return LinearMode.PLAIN
    return LinearMode.HYBRID


def padded_rows(rows: int) -> int:
    """Rows that a packed product computes for `rows` rows: one of a few sizes.

    oneDNN compiles and keeps a kernel for every number of rows that it meets, about 2 MB for
    the products of one model. With sizes as they come an engine grew by 300 MB in 3 minutes.
    """
    multiple = 8 if rows <= 64 else 16 if rows <= 256 else 64
    return -(-rows // multiple) * multiple


class Linear:
    """x W^T + b for a weight [out, in]."""

    def __init__(self, weight: Tensor, bias: Tensor | None, mode: LinearMode) -> None:
        self._plain = None if mode is LinearMode.PACKED else weight
        self._packed = None
        if mode is not LinearMode.PLAIN:
            self._packed = torch.ops.mkldnn._reorder_linear_weight(
                weight.float(), _PACKED_ROWS_HINT
            )
        self._bias = bias
        self._packed_bias = None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        """[rows, in] -> [rows, out], in the type of the weight copy that was used."""
        if self._packed is not None and (self._plain is None or len(x) > 1):
            rows = len(x)
            padded = F.pad(x.float(), (0, 0, 0, padded_rows(rows) - rows))
            product: Tensor = torch.ops.mkldnn._linear_pointwise(
                padded, self._packed, self._packed_bias, "none", [], ""
            )
            return product[:rows]
        assert self._plain is not None
        return F.linear(x.to(self._plain.dtype), self._plain, self._bias)
