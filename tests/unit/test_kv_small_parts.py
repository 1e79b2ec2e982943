"""The layout of a block, namespace keys, and the example of the package."""

from __future__ import annotations

import doctest
import itertools

import pytest

import kvcache
from kvcache import KVDtype, KVLayout, namespace_key
from kvcache.errors import InvalidArgumentError

LAYOUT = KVLayout(layers=3, kv_heads=2, head_dim=8, block_tokens=4, dtype=KVDtype.BFLOAT16)


def test_a_block_holds_keys_and_values_of_all_layers() -> None:
    assert LAYOUT.shape(5) == (5, 3, 2, 4, 2, 8)
    assert LAYOUT.block_elements == 3 * 2 * 4 * 2 * 8
    assert LAYOUT.block_bytes == 2 * LAYOUT.block_elements
    assert LAYOUT.token_bytes * 4 == LAYOUT.block_bytes


@pytest.mark.parametrize("field", ["layers", "kv_heads", "head_dim", "block_tokens"])
def test_a_layout_refuses_empty_dimensions(field: str) -> None:
    sizes = {"layers": 3, "kv_heads": 2, "head_dim": 8, "block_tokens": 4, field: 0}
    with pytest.raises(InvalidArgumentError, match=f"{field} is 0"):
        KVLayout(**sizes, dtype=KVDtype.FLOAT32)


def test_no_two_sets_of_namespace_fields_collide() -> None:
    values = ["", "a", "b", "ab", "a\x00", "\x01\x00\x00\x00a"]
    keys = {
        namespace_key(tenant=tenant, salt=salt, adapter=adapter, fingerprint=fingerprint)
        for tenant, salt, adapter, fingerprint in itertools.product(values, repeat=4)
    }
    assert len(keys) == len(values) ** 4


def test_the_example_of_the_package_works() -> None:
    result = doctest.testmod(kvcache)
    assert result.attempted > 5
    assert result.failed == 0
