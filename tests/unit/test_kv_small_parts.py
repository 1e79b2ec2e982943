"""Layout, arena, namespace keys, choice of victims."""

from __future__ import annotations

import doctest
import itertools
from pathlib import Path

import numpy as np
import pytest

import kvcache
from kvcache import Arena, KVDtype, KVLayout, namespace_key
from kvcache.errors import ArenaError, InvalidArgumentError

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


def test_an_arena_is_writable_zeroed_memory_of_exactly_the_blocks() -> None:
    with Arena(LAYOUT, 5) as arena:
        assert len(arena.buffer) >= arena.size_bytes == 5 * LAYOUT.block_bytes
        pool = np.frombuffer(arena.buffer, np.uint16).reshape(LAYOUT.shape(5))
        assert not pool.any()
        pool[4, 2, 1, 3, 1, 7] = 9
        assert arena.buffer[-2:] == bytes([9, 0])
        del pool


def is_mapped(address: int) -> bool:
    """Whether this process has anything at an address."""
    spans = (
        line.split(" ", 1)[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
    )
    return any(int(start, 16) <= address < int(end, 16) for start, end in spans)


def test_an_arena_is_unmapped_when_nothing_views_it_any_more() -> None:
    arena = Arena(LAYOUT, 5)
    pool = np.frombuffer(arena.buffer, np.uint16)
    address = pool.ctypes.data
    arena.close()
    assert pool[0] == 0
    assert is_mapped(address)
    del pool
    assert not is_mapped(address)
    arena.close()


def test_an_arena_that_cannot_be_mapped_says_how_large_it_was_to_be() -> None:
    with pytest.raises(ArenaError) as caught:
        Arena(LAYOUT, 2**50)
    assert caught.value.size_bytes == 2**50 * LAYOUT.block_bytes


def test_an_arena_needs_a_block_beside_the_null_block() -> None:
    with pytest.raises(InvalidArgumentError, match="num_blocks is 1"):
        Arena(LAYOUT, 1)


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
