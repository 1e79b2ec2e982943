"""The nodes of the prefix index."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.eviction import Link

Tokens = NDArray[np.int32]
Blocks = NDArray[np.int32]


class Node(Link):
    """A run of blocks between two branchings; the first `count` entries of its arrays."""

    __slots__ = (
        "blocks",
        "children",
        "digests",
        "key",
        "locks",
        "namespace",
        "parent",
        "start",
        "tokens",
    )

    def __init__(
        self,
        namespace: bytes,
        parent: Node | None,
        start: int,
        tokens: Tokens,
        blocks: Blocks,
    ) -> None:
        super().__init__(int(blocks.size))
        self.namespace = namespace
        self.parent = parent  # None: a root, which has no blocks
        self.start = start  # blocks before this run
        self.tokens = tokens  # [capacity * block_tokens]
        self.blocks = blocks  # [capacity]
        self.digests: list[int] = []  # of the prefix up to each block; made when first needed
        self.locks = 0
        self.key = b""  # the tokens of the first block
        self.children: dict[bytes, Node] = {}

    def resize(self, capacity: int, block_tokens: int) -> None:
        """Moves the run into arrays with room for `capacity` blocks."""
        for name, width in (("tokens", block_tokens), ("blocks", 1)):
            old = getattr(self, name)
            new = np.empty(capacity * width, old.dtype)
            new[: self.count * width] = old[: self.count * width]
            setattr(self, name, new)


@dataclass(frozen=True, slots=True)
class Match:
    """The longest cached prefix of some tokens. Valid until the index changes."""

    node: Node | None  # the deepest node reached; None: nothing matched
    node_blocks: int  # matched blocks of that node
    blocks: int  # matched blocks in all
    evictable_blocks: int  # of these, held by nobody now


def below(root: Node) -> Iterator[Node]:
    """The nodes under `root`. Iterative: a chain of branches may be very deep."""
    stack = list(root.children.values())
    while stack:
        node = stack.pop()
        stack.extend(node.children.values())
        yield node
