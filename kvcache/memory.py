"""What the manager asks of the memory behind the pool, so that contents can follow block ids."""

from __future__ import annotations

from typing import Protocol

from kvcache.arena import Arena
from kvcache.errors import InvalidArgumentError


class BlockMemory(Protocol):
    """The contents of blocks: keys and values of all layers, see `KVLayout`.

    Copies take effect in the order in which they are asked for, and before whatever is computed
    afterwards; on a GPU they are enqueued on the stream that computes. What `copy` raises comes
    out of the operation, which has been done, with the contents of that block unknown.
    """

    @property
    def block_bytes(self) -> int:
        """Bytes of one block."""

    def copy(self, source: int, destination: int) -> None:
        """Makes block `destination` equal to block `source`."""

    def read(self, block: int) -> memoryview:
        """The bytes of a block. A view: void once the block is written or given to another."""

    def write(self, block: int, data: bytes | memoryview) -> None:
        """Overwrites a block; `data` has exactly the bytes of one."""


class ArenaMemory:
    """The blocks of an `Arena`, on a CPU."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self.block_bytes = arena.layout.block_bytes

    def copy(self, source: int, destination: int) -> None:
        if source != destination:
            self._bytes_of(destination)[:] = self._bytes_of(source)

    def read(self, block: int) -> memoryview:
        return self._bytes_of(block).toreadonly()

    def write(self, block: int, data: bytes | memoryview) -> None:
        size = memoryview(data).nbytes
        if size != self.block_bytes:
            limit = f"{self.block_bytes} bytes (one block)"
            raise InvalidArgumentError("data", f"{size} bytes", limit)
        self._bytes_of(block)[:] = memoryview(data).cast("B")

    def _bytes_of(self, block: int) -> memoryview:
        if not 0 < block < self._arena.num_blocks:
            limit = f"from 1 to {self._arena.num_blocks - 1} (block 0 is the null block)"
            raise InvalidArgumentError("block", block, limit)
        start = block * self.block_bytes
        return self._arena.buffer[start : start + self.block_bytes]
