"""The prefix index: which block holds the K and V of which tokens.

A prefix tree with one node a block. Children are found in one table by (parent, tokens), both
compared exactly; as the parent is compared as a block, equality of whole prefixes follows by
induction: a block leaves the index after all that continue it. No digest decides what is served.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kvcache.core.pool import NULL_BLOCK
from kvcache.core.regret import chain_digest
from kvcache.errors import ConservationError

Parent = int | bytes  # the block before, or for a first block its namespace


@dataclass(slots=True)
class Node:
    """A block in the index."""

    namespace: bytes
    parent: Parent
    tokens: bytes
    digest: int  # of the whole prefix, for statistics
    continuations: int = 0  # blocks that have it as their parent


@dataclass(slots=True)
class Namespace:
    """A namespace is kept while a block or a holder needs it."""

    group: int
    users: int = 0  # first blocks, and holders


class RadixIndex:
    """The index over one pool. It has numbers of blocks, the pool has their states."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self._block_bytes = 4 * block_tokens
        self._nodes: dict[int, Node] = {}  # parents before what continues them
        self._blocks: dict[tuple[Parent, bytes], int] = {}
        self._namespaces: dict[bytes, Namespace] = {}
        self._first_blocks: Counter[bytes] = Counter()  # by tokens, over all namespaces
        # The block last inserted behind a parent with a first token, as far as it was not
        # overwritten by another pair.
        self._hints = [NULL_BLOCK] * max(1, num_blocks // 4)

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, block: int) -> bool:
        return block in self._nodes

    # --- namespaces ----------------------------------------------------------

    def group_of(self, namespace: bytes) -> int | None:
        """The group that a namespace belongs to; None: nobody needs it now."""
        found = self._namespaces.get(namespace)
        return None if found is None else found.group

    def acquire(self, namespace: bytes, group: int) -> None:
        """A holder or first block more."""
        self._namespaces.setdefault(namespace, Namespace(group)).users += 1

    def leave(self, namespace: bytes) -> None:
        """A holder or first block less."""
        found = self._namespaces[namespace]
        found.users -= 1
        if found.users == 0:
            del self._namespaces[namespace]

    # --- reading -------------------------------------------------------------

    def node(self, block: int) -> Node:
        """What the index knows of one of its blocks."""
        return self._nodes[block]

    def nodes(self) -> Iterator[tuple[int, Node]]:
        """All blocks, parents before what continues them."""
        return iter(self._nodes.items())

    def find(self, parent: Parent, tokens: bytes) -> int | None:
        """The block that continues `parent` with these tokens."""
        return self._blocks.get((parent, tokens))

    def match(self, namespace: bytes, tokens: bytes, max_blocks: int) -> list[int]:
        """The blocks of the longest known prefix of `tokens`, at most `max_blocks`."""
        found: list[int] = []
        parent: Parent = namespace
        for number in range(min(max_blocks, len(tokens) // self._block_bytes)):
            block = self.find(parent, self._block(tokens, number))
            if block is None:
                break
            found.append(block)
            parent = block
        return found

    def path(self, namespace: bytes, tokens: bytes, blocks: int, end: int) -> list[int]:
        """The blocks of a match of `blocks` blocks that ends with `end`, in order.

        Their tokens are compared again on the way: with a stale match a sequence would be
        served the K and V of something else. Raises ConservationError then.
        """
        found: list[int] = []
        step: Parent = end if blocks > 0 else namespace
        for number in reversed(range(blocks)):
            node = self._nodes.get(step) if isinstance(step, int) else None
            if node is None or node.tokens != self._block(tokens, number):
                raise ConservationError("a match is not in the index any more")
            assert isinstance(step, int)
            found.append(step)
            step = node.parent
        if step != namespace:
            raise ConservationError("a match is of another namespace")
        return found[::-1]

    def partial_match(
        self, namespace: bytes, tokens: bytes, blocks: int, end: int
    ) -> tuple[int, int]:
        """A block behind a match that begins with what follows there in `tokens`.

        Answers it and the number of tokens that agree, never as far as the last one; (0, 0) if
        none is known.
        """
        rest = tokens[blocks * self._block_bytes : -4]
        parent: Parent = end if blocks > 0 else namespace
        if not rest:
            return NULL_BLOCK, 0
        block = self._hints[self._hint(parent, rest)]
        node = self._nodes.get(block)
        if node is None or node.parent != parent:
            return NULL_BLOCK, 0
        common = _common_tokens(node.tokens, rest)
        return (block, common) if common > 0 else (NULL_BLOCK, 0)

    def digest(self, namespace: bytes, end: int | None) -> int:
        """The digest of the prefix that ends with a block (None: the empty one)."""
        return hash(namespace) if end is None else self._nodes[end].digest

    def begins_elsewhere(self, namespace: bytes, tokens: bytes) -> bool:
        """Whether another namespace has the first block of `tokens`, and this one has not."""
        first = self._block(tokens, 0)
        return self._first_blocks[first] > 0 and self.find(namespace, first) is None

    # --- changing ------------------------------------------------------------

    def insert(self, block: int, namespace: bytes, parent: Parent, tokens: bytes) -> None:
        """Adds a block; nothing in the index has its parent and tokens. A holder has it."""
        if isinstance(parent, int):
            before = self._nodes[parent]
            before.continuations += 1
            digest = chain_digest(before.digest, tokens)
        else:
            self._first_blocks[tokens] += 1
            self._namespaces[namespace].users += 1
            digest = chain_digest(hash(namespace), tokens)
        self._nodes[block] = Node(namespace, parent, tokens, digest)
        self._blocks[parent, tokens] = block
        self._hints[self._hint(parent, tokens)] = block

    def remove(self, block: int) -> Node:
        """Takes a block out that none continues; raises ConservationError if one does."""
        node = self._nodes[block]
        if node.continuations:
            raise ConservationError(f"block {block} would leave the index before its successors")
        self._forget(block, node)
        if isinstance(node.parent, int):
            self._nodes[node.parent].continuations -= 1
        return node

    def drop(self, namespace: bytes | None) -> list[int]:
        """Takes all blocks of a namespace out (None: of all); answers them, ascending."""
        dropped = sorted(
            block
            for block, node in self._nodes.items()
            if namespace is None or node.namespace == namespace
        )
        for block in dropped:
            self._forget(block, self._nodes[block])
        return dropped

    def rename(self, moves: Mapping[int, int]) -> None:
        """Blocks have moved to numbers that were free, O(blocks)."""

        def renamed(parent: Parent) -> Parent:
            return moves.get(parent, parent) if isinstance(parent, int) else parent

        for node in self._nodes.values():
            node.parent = renamed(node.parent)
        self._nodes = {moves.get(block, block): node for block, node in self._nodes.items()}
        self._blocks = {
            (renamed(parent), tokens): moves.get(block, block)
            for (parent, tokens), block in self._blocks.items()
        }
        self._hints = [moves.get(block, block) for block in self._hints]

    # --- audit ---------------------------------------------------------------

    def audit(self, holders: Counter[bytes]) -> None:
        """Full consistency of the tree, with the number of holders by namespace."""
        users = Counter(holders)
        first_blocks: Counter[bytes] = Counter()
        continuations: Counter[Parent] = Counter()
        for block, node in self._nodes.items():
            if (
                self.find(node.parent, node.tokens) != block
                or len(node.tokens) != self._block_bytes
            ):
                raise ConservationError(f"block {block} is not found by its tokens")
            continuations[node.parent] += 1
            if isinstance(node.parent, int):
                if node.parent not in self._nodes:
                    raise ConservationError(f"block {block} continues a block outside the index")
                before = (self._nodes[node.parent].namespace, self._nodes[node.parent].digest)
            else:
                users[node.parent] += 1
                first_blocks[node.tokens] += 1
                before = node.parent, hash(node.parent)
            if (node.namespace, node.digest) != (before[0], chain_digest(before[1], node.tokens)):
                raise ConservationError(f"block {block} is of another prefix than its parent")
        for block, node in self._nodes.items():
            if node.continuations != continuations[block]:
                raise ConservationError(f"the continuations of block {block} are miscounted")
        if len(self._blocks) != len(self._nodes) or first_blocks != self._first_blocks:
            raise ConservationError("the index has entries without a block, or lacks some")
        if users != {name: found.users for name, found in self._namespaces.items()}:
            raise ConservationError("a namespace is kept without need, or miscounted")

    # --- mechanism -----------------------------------------------------------

    def _block(self, tokens: bytes, number: int) -> bytes:
        return tokens[number * self._block_bytes : (number + 1) * self._block_bytes]

    def _forget(self, block: int, node: Node) -> None:
        del self._nodes[block], self._blocks[node.parent, node.tokens]
        if isinstance(node.parent, bytes):
            self._first_blocks[node.tokens] -= 1
            if self._first_blocks[node.tokens] == 0:
                del self._first_blocks[node.tokens]
            self.leave(node.namespace)

    def _hint(self, parent: Parent, tokens: bytes) -> int:
        """The slot of a parent and the first token behind it; see CacheCore.partial_match."""
        before = parent if isinstance(parent, int) else NULL_BLOCK
        first = int.from_bytes(tokens[:4], sys.byteorder)
        mixed = (before * 2654435761) ^ (first * 40503)
        return mixed % 2**32 % len(self._hints)


def _common_tokens(left: bytes, right: bytes) -> int:
    same = 0
    while same < min(len(left), len(right)) and left[same] == right[same]:
        same += 1
    return same // 4
