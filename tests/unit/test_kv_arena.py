"""The arena: one boundary between blocks with memory and addresses without."""

from __future__ import annotations

import ctypes
import mmap
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvcache import Arena, KVDtype, KVLayout
from kvcache.arena import HEADROOM_BYTES
from kvcache.errors import ArenaError, InvalidArgumentError, MemoryShortError

PAGE = mmap.PAGESIZE
# 3,072 bytes a block: three of four boundaries lie inside a page.
LAYOUT = KVLayout(layers=3, kv_heads=2, head_dim=8, block_tokens=16, dtype=KVDtype.BFLOAT16)
BLOCK = LAYOUT.block_bytes


def resident_bytes(arena: Arena) -> int:
    """Bytes of the reservation that really have memory, in whole pages."""
    pages = -(-len(arena.buffer) // PAGE)
    present = np.zeros(pages, np.uint8)
    first = np.frombuffer(arena.buffer, np.uint8).ctypes.data
    arguments = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    mincore = ctypes.CFUNCTYPE(ctypes.c_int, *arguments)(("mincore", ctypes.CDLL(None)))
    assert mincore(first, pages * PAGE, present.ctypes.data) == 0
    return int((present & 1).sum()) * PAGE


def is_mapped(address: int) -> bool:
    """Whether this process has anything at an address."""
    spans = (
        line.split(" ", 1)[0].split("-")
        for line in Path("/proc/self/maps").read_text().splitlines()
    )
    return any(int(start, 16) <= address < int(end, 16) for start, end in spans)


def test_an_arena_is_writable_zeroed_memory_of_exactly_the_blocks() -> None:
    with Arena(LAYOUT, 5) as arena:
        assert len(arena.buffer) >= arena.size_bytes == 5 * LAYOUT.block_bytes
        pool = np.frombuffer(arena.buffer, np.uint16).reshape(LAYOUT.shape(5))
        assert not pool.any()
        pool[4, 2, 1, 15, 1, 7] = 9
        assert arena.buffer[-2:] == bytes([9, 0])
        del pool


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


def test_views_of_the_whole_reservation_stay_valid() -> None:
    with Arena(LAYOUT, 4, 400) as arena:
        pool = np.frombuffer(arena.buffer, np.uint8).reshape(400, BLOCK)
        pool[:4] = 7
        arena.grow(400)
        assert (pool[:4] == 7).all()
        assert not pool[4:].any(), "new blocks are zeros"
        pool[4:] = 9
        arena.shrink(101)
        assert (pool[:4] == 7).all()
        assert (pool[4:101] == 9).all()
        assert (arena.num_blocks, arena.size_bytes) == (101, 101 * BLOCK)
        del pool


@pytest.mark.parametrize("kept_blocks", [2, 3, 4, 5, 99])
def test_what_was_in_a_block_that_went_does_not_come_back(kept_blocks: int) -> None:
    """Also where block and page boundaries differ, so that a page of it stays."""
    with Arena(LAYOUT, 100) as arena:
        pool = np.frombuffer(arena.buffer, np.uint8).reshape(100, BLOCK)
        pool[:] = 0xFF
        arena.shrink(kept_blocks)
        arena.grow(100)
        assert (pool[:kept_blocks] == 0xFF).all()
        assert not pool[kept_blocks:].any()
        del pool


def test_memory_comes_with_growth_and_goes_with_shrinking() -> None:
    blocks = (64 << 20) // BLOCK
    with Arena(LAYOUT, 2, blocks) as arena:
        assert resident_bytes(arena) <= 3 * PAGE, "a reservation takes no memory"
        arena.grow(blocks)
        # Before anybody has written: whoever was promised memory has it.
        assert resident_bytes(arena) >= arena.size_bytes - 2 * PAGE
        arena.buffer[0] = arena.buffer[2 * BLOCK - 1] = 1
        arena.shrink(blocks // 4)
        assert arena.size_bytes <= resident_bytes(arena) <= arena.size_bytes + 2 * PAGE
        arena.shrink(2)
        assert resident_bytes(arena) <= 3 * PAGE


def test_the_first_blocks_take_memory_only_when_they_are_written() -> None:
    with Arena(LAYOUT, 10_000) as arena:
        assert resident_bytes(arena) < 100 * PAGE


def test_a_reservation_far_beyond_the_memory_of_the_machine() -> None:
    with Arena(LAYOUT, 4, (1 << 44) // BLOCK) as arena:
        assert len(arena.buffer) > 1 << 43


TOUCH = """
import faulthandler, sys
import numpy as np
from kvcache import Arena, KVDtype, KVLayout

faulthandler.disable()
layout = KVLayout(layers=4, kv_heads=2, head_dim=16, block_tokens=16, dtype=KVDtype.BFLOAT16)
assert layout.block_bytes == 8192
arena = Arena(layout, 8, 64)
pool = np.frombuffer(arena.buffer, np.uint8).reshape(64, 8192)
arena.grow(32)
pool[31, -1] = 1
arena.shrink(16)
pool[15, -1] = 1
print("still alive", flush=True)
{touch}
print("not reached", flush=True)
"""


@pytest.mark.parametrize(
    "touch", ["pool[16, 0] = 1", "pool[31, 5]", "pool[63, -1]", "arena.grow(17); pool[17, 0]"]
)
def test_touching_a_block_without_memory_ends_the_process(touch: str) -> None:
    code = TOUCH.format(touch=touch)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout == "still alive\n"
    assert done.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("short_bytes", [0, 1])
def test_growth_needs_its_bytes_and_the_headroom(short_bytes: int) -> None:
    wanted_bytes = 10 * PAGE
    available_bytes = wanted_bytes + HEADROOM_BYTES - short_bytes
    layout = KVLayout(1, 1, PAGE // 8, 1, KVDtype.FLOAT32)
    assert layout.block_bytes == PAGE
    with Arena(layout, 4, 20, available_bytes=lambda: available_bytes) as arena:
        if not short_bytes:
            arena.grow(14)
            return
        with pytest.raises(MemoryShortError) as caught:
            arena.grow(14)
        assert caught.value.wanted_bytes == wanted_bytes
        assert caught.value.available_bytes == available_bytes
        assert f"cannot grow by {wanted_bytes} bytes" in str(caught.value)
        assert arena.num_blocks == 4
        assert resident_bytes(arena) == 0


def test_growth_that_runs_short_half_way_gives_all_of_it_back() -> None:
    layout = KVLayout(8, 8, 128, 16, KVDtype.FLOAT32)  # 1 MiB
    left = iter([10 << 30, 10 << 30, 0])
    with Arena(layout, 2, 400, available_bytes=lambda: next(left)) as arena:
        arena.buffer[0] = 1
        with pytest.raises(MemoryShortError):
            arena.grow(400)
        assert arena.num_blocks == 2
        assert resident_bytes(arena) == PAGE
        assert next(left, None) is None


@pytest.mark.parametrize(
    ("operation", "num_blocks"),
    [("grow", 9), ("grow", 21), ("shrink", 11), ("shrink", 1), ("shrink", -1)],
)
def test_sizes_outside_the_reservation_change_nothing(operation: str, num_blocks: int) -> None:
    with Arena(LAYOUT, 10, 20) as arena:
        with pytest.raises(InvalidArgumentError, match=f"num_blocks is {num_blocks}"):
            getattr(arena, operation)(num_blocks)
        assert arena.num_blocks == 10
        arena.grow(10)
        arena.shrink(10)
        assert arena.num_blocks == 10


def test_a_reservation_smaller_than_the_pool_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="max_blocks is 9, but must be at least 10"):
        Arena(LAYOUT, 10, 9)


def test_a_system_that_gives_no_memory_has_none_available(monkeypatch: pytest.MonkeyPatch) -> None:
    with Arena(LAYOUT, 10, 20) as arena:

        def refuse(*_: int) -> None:
            raise OSError(12, "Cannot allocate memory")

        monkeypatch.setattr(arena._space, "populate", refuse)
        with pytest.raises(MemoryShortError) as caught:
            arena.grow(20)
        assert (caught.value.wanted_bytes, caught.value.available_bytes) == (7 * PAGE, 0)
        assert isinstance(caught.value.__cause__, OSError)
        assert arena.num_blocks == 10


def test_a_part_that_is_still_viewed_keeps_its_memory_after_close() -> None:
    arena = Arena(LAYOUT, 10)
    arena.buffer[BLOCK] = 5
    part = arena.buffer[BLOCK : 2 * BLOCK]
    arena.close()
    assert part[0] == 5
