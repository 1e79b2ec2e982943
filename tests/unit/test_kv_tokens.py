"""The conversion of token ids."""

from __future__ import annotations

import numpy as np
import pytest

from kvcache.errors import InvalidArgumentError
from kvcache.tokens import token_array


def test_ids_of_32_bits_come_out_as_they_went_in() -> None:
    ids = [0, 1, 2**31 - 1, -(2**31)]
    array = token_array(ids)
    assert array.dtype == np.int32
    assert array.tolist() == ids
    assert token_array([]).shape == (0,)


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1, 2**70, 1.5, "7", None])
def test_anything_else_is_refused_by_value(bad: object) -> None:
    with pytest.raises(InvalidArgumentError, match="32-bit") as caught:
        token_array([1, bad, 3])  # type: ignore[list-item]
    assert caught.value.value == bad


def test_ids_of_numpy_are_ids_too() -> None:
    assert token_array([np.int64(7), 8]).tolist() == [7, 8]
    with pytest.raises(InvalidArgumentError) as caught:
        token_array([np.int64(7), 2**31])
    assert caught.value.value == 2**31
