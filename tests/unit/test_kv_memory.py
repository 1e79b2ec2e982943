"""The contents of blocks in an arena."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from kvcache import Arena, ArenaMemory, KVDtype, KVLayout
from kvcache.errors import InvalidArgumentError

LAYOUT = KVLayout(layers=2, kv_heads=1, head_dim=4, block_tokens=2, dtype=KVDtype.FLOAT32)


@pytest.fixture
def arena() -> Iterator[Arena]:
    arena = Arena(LAYOUT, 4)
    yield arena
    arena.close()


def test_a_block_is_all_layers_of_its_slots(arena: Arena) -> None:
    memory = ArenaMemory(arena)
    values = np.frombuffer(arena.buffer, np.float32).reshape(LAYOUT.shape(4))
    values[2] = 7.0
    values[3] = 8.0
    memory.copy(2, 1)
    assert (values[1] == 7.0).all()
    memory.write(2, memory.read(3))
    assert (values[2] == 8.0).all()
    assert (values[0] == 0.0).all()
    memory.write(3, bytes(LAYOUT.block_bytes))
    assert (values[3] == 0.0).all()
    memory.copy(1, 1)
    assert bytes(memory.read(1)) == values[1].tobytes()
    del values


def test_what_is_read_cannot_be_written_through(arena: Arena) -> None:
    with pytest.raises(TypeError, match="read-only"):
        ArenaMemory(arena).read(1)[0] = 1


@pytest.mark.parametrize("block", [0, 4, -1])
def test_blocks_that_nobody_owns_are_refused(arena: Arena, block: int) -> None:
    memory = ArenaMemory(arena)
    for operation in (
        lambda: memory.read(block),
        lambda: memory.copy(block, 1),
        lambda: memory.copy(1, block),
        lambda: memory.write(block, bytes(LAYOUT.block_bytes)),
    ):
        with pytest.raises(InvalidArgumentError, match=f"block is {block}"):
            operation()


def test_half_a_block_is_refused(arena: Arena) -> None:
    memory = ArenaMemory(arena)
    before = bytes(memory.read(1))
    for size in (LAYOUT.block_bytes - 1, LAYOUT.block_bytes + 1):
        with pytest.raises(InvalidArgumentError, match=f"data is '{size} bytes'"):
            memory.write(1, b"\x01" * size)
    assert bytes(memory.read(1)) == before
