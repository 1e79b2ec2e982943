"""What the manager keeps of a live sequence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.node import Node


class IntArray:
    """An int32 array that grows at its end, amortised O(1)."""

    __slots__ = ("_buffer", "size")

    def __init__(self, values: NDArray[np.int32]) -> None:
        self._buffer = values.copy()
        self.size = int(values.size)

    def append(self, value: int) -> None:
        """Adds one value."""
        if self.size == self._buffer.size:
            grown = np.empty(max(16, 2 * self.size), np.int32)
            grown[: self.size] = self._buffer
            self._buffer = grown
        self._buffer[self.size] = value
        self.size += 1

    @property
    def view(self) -> NDArray[np.int32]:
        """The values. The view is void once something is appended."""
        return self._buffer[: self.size]


@dataclass(slots=True)
class LiveSequence:
    """Tokens, blocks and progress of one sequence that holds blocks."""

    sequence_id: int
    namespace: bytes
    publish: bool  # whether its full blocks go to the index; a flush ends that
    tokens: IntArray
    table: IntArray
    prompt_tokens: int  # tokens at admission
    computed_tokens: int  # leading tokens whose K and V are written
    published_blocks: int  # leading blocks of the table that are those of the index
    node: Node | None  # end of its locked path in the index

    def unwritten_blocks(self, block_tokens: int) -> int:
        """Blocks that are held and have no computed token yet."""
        return self.table.size + -self.computed_tokens // block_tokens
