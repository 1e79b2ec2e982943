"""The arena of the pool on a device: what it may grow to, and what it owes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from kvcache import Arena, KVDtype, KVLayout
from kvcache.arena import HEADROOM_BYTES
from kvcache.errors import InvalidArgumentError, MemoryShortError
from service.device.arena import DeviceArena
from service.device.cpu import CpuDevice
from service.device.errors import DeviceOutOfMemoryError
from service.device.owner import Owner

LAYOUT = KVLayout(layers=1, kv_heads=1, head_dim=32, block_tokens=16, dtype=KVDtype.FLOAT32)
BLOCK = 4096  # a page, so that what was written can be counted
HEADROOM = 5 * BLOCK


@dataclass
class Stage:
    """A pool of 10 blocks, which can be 200, on a device of 100."""

    host_bytes: int = 1 << 30
    device: CpuDevice = field(init=False)
    pool: DeviceArena = field(init=False)

    def __post_init__(self) -> None:
        self.device = CpuDevice(100 * BLOCK, available_bytes=lambda: self.host_bytes)
        arena = Arena(LAYOUT, 10, 200, available_bytes=lambda: self.host_bytes)
        self.pool = DeviceArena(arena, self.device, HEADROOM)
        self.device.promised_bytes = arena.promised_bytes

    @property
    def kv_bytes(self) -> int:
        return self.device.figures().by_owner[Owner.KV_POOL]

    def assert_unchanged(self) -> None:
        assert self.pool.num_blocks == 10
        assert self.kv_bytes == 10 * BLOCK


def test_a_pool_is_claimed_from_the_start() -> None:
    stage = Stage()
    assert LAYOUT.block_bytes == BLOCK
    assert (stage.pool.num_blocks, stage.pool.max_blocks) == (10, 200)
    assert stage.pool.layout is LAYOUT
    stage.assert_unchanged()


def test_a_pool_that_the_device_does_not_have_is_not_made() -> None:
    device = CpuDevice(9 * BLOCK)
    with pytest.raises(DeviceOutOfMemoryError, match="bytes wanted for kv_pool"):
        DeviceArena(Arena(LAYOUT, 10), device, HEADROOM)


def test_growing_takes_from_the_device_and_shrinking_gives_back() -> None:
    stage = Stage()
    stage.pool.require_memory(60)
    stage.pool.grow(60)
    assert (stage.pool.num_blocks, stage.kv_bytes) == (60, 60 * BLOCK)
    assert stage.device.figures().free_bytes == 40 * BLOCK
    stage.pool.shrink(25)
    assert (stage.pool.num_blocks, stage.kv_bytes) == (25, 25 * BLOCK)
    assert stage.device.figures().free_bytes == 75 * BLOCK


@pytest.mark.parametrize("what", ["require_memory", "grow"])
def test_steps_keep_their_headroom(what: str) -> None:
    stage = Stage()
    with pytest.raises(MemoryShortError) as caught:
        getattr(stage.pool, what)(96)
    error = caught.value
    assert (error.wanted_bytes, error.available_bytes) == (86 * BLOCK, 90 * BLOCK)
    assert error.headroom_bytes == HEADROOM
    stage.assert_unchanged()
    stage.pool.grow(95)


def test_what_the_allocator_keeps_counts_as_there_and_goes_when_it_is_needed() -> None:
    stage = Stage()
    stage.device.take(Owner.ACTIVATIONS, 40 * BLOCK)
    stage.device.give_back(Owner.ACTIVATIONS, 40 * BLOCK)
    stage.pool.grow(90)
    assert stage.device.figures().reclaimable_bytes == 0
    assert stage.device.figures().allocator_retries == 1


@pytest.mark.parametrize("host_bytes", [60 * BLOCK, HEADROOM_BYTES])
@pytest.mark.parametrize("what", ["require_memory", "grow"])
def test_a_host_that_is_short_stops_growth_too(what: str, host_bytes: int) -> None:
    """On the device, or in the arena, which leaves more of the host than steps need."""
    stage = Stage()
    stage.host_bytes = host_bytes
    with pytest.raises(MemoryShortError):
        getattr(stage.pool, what)(80)
    stage.assert_unchanged()


@pytest.mark.parametrize("num_blocks", [9, 201])
def test_a_size_that_no_growth_leads_to_leaves_no_claim_behind(num_blocks: int) -> None:
    stage = Stage()
    stage.device = CpuDevice(1000 * BLOCK)
    stage.pool = DeviceArena(stage.pool.arena, stage.device, HEADROOM)
    with pytest.raises((InvalidArgumentError, ValueError)):
        stage.pool.grow(num_blocks)
    stage.assert_unchanged()
    stage.pool.require_memory(10)


def test_promised_bytes_are_those_that_nobody_has_written() -> None:
    with Arena(LAYOUT, 100, 200) as arena:
        assert arena.promised_bytes() == 100 * BLOCK
        pages = np.frombuffer(arena.buffer, np.uint8).reshape(200, BLOCK)
        pages[:30, 0] = 1
        assert arena.promised_bytes() == 70 * BLOCK
        pages[90, 0] = 1
        assert arena.promised_bytes() == 69 * BLOCK
        arena.shrink(50)
        assert arena.promised_bytes() == 20 * BLOCK
        arena.shrink(20)
        assert arena.promised_bytes() == 0
        del pages


def test_promised_bytes_of_a_pool_of_many_chunks() -> None:
    blocks = (200 << 20) // BLOCK
    with Arena(LAYOUT, blocks) as arena:
        pages = np.frombuffer(arena.buffer, np.uint8).reshape(blocks, BLOCK)
        for written in (blocks // 3, blocks // 2, blocks):
            pages[:written, 0] = 1
            assert arena.promised_bytes() == (blocks - written) * BLOCK
        arena.shrink(blocks // 4)
        assert arena.promised_bytes() == 0
        del pages
