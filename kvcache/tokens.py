"""Token ids as the arrays that the cache compares."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from kvcache.errors import InvalidArgumentError


def token_array(token_ids: Sequence[int]) -> NDArray[np.int32]:
    """The ids as a flat int32 array, read-only.

    `struct` converts a list in well under half of the time that numpy takes, and a prompt of
    thousands of tokens costs more here than in all the rest of an admission. Raises
    InvalidArgumentError when an id is no 32-bit integer.
    """
    try:
        packed = struct.pack(f"={len(token_ids)}i", *token_ids)
    except struct.error as error:
        bad = next(
            i for i in token_ids if not isinstance(i, SupportsIndex) or not -(2**31) <= i < 2**31
        )
        raise InvalidArgumentError("token_ids", bad, "32-bit integers") from error
    return np.frombuffer(packed, np.int32)
