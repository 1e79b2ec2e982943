"""The prefix index: which block holds the KV of which tokens.

A radix tree over whole blocks, one root per namespace. An edge holds a run of blocks with
their tokens as arrays, so that a lookup costs a few array operations per run and nothing per
block. Children are keyed by the exact tokens of their first block and runs are compared token
by token; no digest decides what is served.

A sequence that uses a prefix *locks* the path to it. Whoever locks a node locks its ancestors,
hence unlocked nodes form whole subtrees, all of their blocks can be evicted, and the number of
evictable blocks is a plain sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from kvcache.errors import ConservationError
from kvcache.eviction import EvictionPolicy
from kvcache.node import Blocks, Match, Node, Tokens, below
from kvcache.regret import EvictionMemory, chain_digest

_NO_BLOCKS: Blocks = np.empty(0, np.int32)
_MIN_CAPACITY = 4  # blocks a run has room for


class RadixIndex:
    """The index over one pool. It holds numbers of blocks, the pool holds their states."""

    def __init__(self, block_tokens: int, policy: EvictionPolicy, memory: EvictionMemory) -> None:
        self.block_tokens = block_tokens
        self.num_blocks = 0
        self.evictable_blocks = 0
        self._policy = policy
        self._memory = memory
        self._roots: dict[bytes, Node] = {}
        self._first_keys: dict[bytes, int] = {}  # first block -> number of roots that have it

    # --- reading -------------------------------------------------------------

    def match(self, namespace: bytes, tokens: Tokens, max_blocks: int) -> Match:
        """The longest cached prefix of `tokens`, at most `max_blocks` whole blocks."""
        node = self._roots.get(namespace)
        found, node_blocks, position, evictable = None, 0, 0, 0
        while node is not None and position < max_blocks:
            child, same = self._follow(node, tokens, position, max_blocks)
            if child is None:
                break
            found, node_blocks = child, same
            position += same
            if child.locks == 0:
                evictable += same
            node = child if same == child.count else None
        return Match(found, node_blocks, position, evictable)

    def forgotten_blocks(
        self, namespace: bytes, tokens: Tokens, match: Match, max_blocks: int
    ) -> int:
        """How many blocks right behind `match` were evicted and are now missed."""
        if len(self._memory) == 0:
            return 0
        digest = hash(namespace)
        if match.node is not None:
            digest = self._digests(match.node)[match.node_blocks - 1]
        for position in range(match.blocks, max_blocks):
            digest = chain_digest(digest, self._key(tokens, position))
            if digest not in self._memory:
                return position - match.blocks
        return max_blocks - match.blocks

    def begins_elsewhere(self, namespace: bytes, tokens: Tokens) -> bool:
        """Whether another namespace has the first block of `tokens`, and this one has not."""
        key = self._key(tokens, 0)
        root = self._roots.get(namespace)
        return key in self._first_keys and (root is None or key not in root.children)

    # --- locking -------------------------------------------------------------

    def lock(self, match: Match, *, is_reuse: bool) -> tuple[Node | None, Blocks]:
        """Locks the matched path. Answers its last node and the matched blocks in order.

        A run that matched in part is cut, so that locks cover whole nodes. With `is_reuse`
        the path is marked as reused if nobody held its end: several requests at one time,
        such as the candidates of one prompt, are one use.
        """
        node = match.node
        if node is None:
            return None, _NO_BLOCKS
        marks = is_reuse and node.locks == 0
        blocks = np.empty(match.blocks, np.int32)
        end = step = self._lock_leading(node, match.node_blocks)
        while True:
            step.reused = step.reused or marks
            blocks[step.start : step.start + step.count] = step.blocks[: step.count]
            parent = step.parent
            if parent is None or parent.parent is None:
                return end, blocks
            step = self._lock_leading(parent, parent.count)

    def unlock(self, node: Node | None) -> None:
        """Takes one lock off the path to `node`. From the leaf up, as the policy demands."""
        self._policy.tick()
        while node is not None and node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self._policy.add(node)
                self.evictable_blocks += node.count
            node = node.parent

    # --- changing ------------------------------------------------------------

    def insert(
        self, namespace: bytes, at: Node | None, tokens: Tokens, blocks: Blocks
    ) -> tuple[Node, Blocks]:
        """Adds `blocks` with their `tokens` behind `at`, the end of the caller's locked path.

        Answers the new end of that path, locked, and the blocks that the index had already
        for the first of these tokens: the caller must use those in place of its own. The
        rest of `blocks` belongs to the index from now on. `blocks` is not empty.
        """
        node = at if at is not None else self._root(namespace)
        total = int(blocks.size)
        position = 0
        known: list[Blocks] = []
        while position < total:
            child, same = self._follow(node, tokens, position, total)
            if child is None:
                break
            node = self._lock_leading(child, same)
            known.append(node.blocks[: node.count])
            position += same
        if position < total:
            rest = tokens[position * self.block_tokens : total * self.block_tokens]
            node = self._grow(node, rest, blocks[position:])
        return node, _joined(known)

    def evict(self, count: int) -> Blocks:
        """Removes up to `count` evictable blocks, the policy's victims from their tails on.

        Answers them in this order: each block after all that continue it. O(1) per visit;
        every visit removes a node, ends the eviction, or exhausts what the policy gives from
        one of its lists.
        """
        taken: list[Blocks] = []
        while count > 0:
            victim = self._policy.victim()
            if victim is None:
                break
            node = cast(Node, victim.link)
            cut = node.count - min(count, victim.max_blocks)
            taken.append(node.blocks[cut : node.count][::-1].copy())
            self._memory.remember(reversed(self._digests(node)[cut:]))
            del node.digests[cut:]
            removed = node.count - cut
            count -= removed
            self.num_blocks -= removed
            self.evictable_blocks -= removed
            self._policy.shrink(node, removed)
            node.count = cut
            if cut == 0:
                self._policy.remove(node)
                self._detach(node)
            elif cut * 4 <= node.blocks.size and node.blocks.size > _MIN_CAPACITY:
                node.resize(max(_MIN_CAPACITY, cut * 2), self.block_tokens)
        return _joined(taken)

    def drop(self, namespace: bytes | None) -> Blocks:
        """Forgets a namespace (None: all), locked nodes too. Answers the blocks let go.

        Paths into it are void from now on: their owners must neither unlock nor extend them.
        """
        roots = list(self._roots) if namespace is None else [namespace]
        dropped: list[Blocks] = []
        for name in roots:
            root = self._roots.get(name)
            if root is None:
                continue
            for node in below(root):
                dropped.append(node.blocks[: node.count])
                self.num_blocks -= node.count
                if node.locks == 0:
                    self._policy.remove(node)
                    self.evictable_blocks -= node.count
            for child in list(root.children.values()):
                self._detach(child)
        return _joined(dropped)

    # --- audit ---------------------------------------------------------------

    def nodes(self) -> Iterator[Node]:
        """All nodes with blocks, in no useful order."""
        for root in self._roots.values():
            yield from below(root)

    def audit(self) -> None:
        """Full consistency of the tree and its counters, O(number of tokens)."""
        total = evictable = 0
        first_keys: dict[bytes, int] = {}
        for root in self._roots.values():
            if not root.children:
                raise ConservationError(f"namespace {root.namespace!r} is empty but kept")
            for key in root.children:
                first_keys[key] = first_keys.get(key, 0) + 1
        for node in self.nodes():
            parent = node.parent
            if parent is None or parent.children.get(node.key) is not node:
                raise ConservationError("a node is not the child of its parent")
            if node.count < 1 or node.key != self._key(node.tokens, 0):
                raise ConservationError("a node is empty, or its key is not its first block")
            if node.start != parent.start + parent.count:
                raise ConservationError("a run does not start where its parent ends")
            if node.locks < 0 or (parent.parent is not None and parent.locks < node.locks):
                raise ConservationError("a node has more locks than its parent")
            if node.reused and parent.parent is not None and not parent.reused:
                raise ConservationError("a node was reused without its parent")
            if (node.after is not None) != (node.locks == 0):
                raise ConservationError("the policy has a locked node, or misses an unlocked one")
            total += node.count
            evictable += node.count if node.locks == 0 else 0
        if (total, evictable) != (self.num_blocks, self.evictable_blocks):
            raise ConservationError(
                f"the tree has {total} blocks, {evictable} evictable; the counters say "
                f"{self.num_blocks} and {self.evictable_blocks}"
            )
        if first_keys != self._first_keys:
            raise ConservationError("the count of first blocks is wrong")

    # --- mechanism -----------------------------------------------------------

    def _key(self, tokens: Tokens, block: int) -> bytes:
        return tokens[block * self.block_tokens : (block + 1) * self.block_tokens].tobytes()

    def _follow(
        self, node: Node, tokens: Tokens, position: int, max_blocks: int
    ) -> tuple[Node | None, int]:
        """The child that goes on with block `position` of `tokens`, and how far it agrees."""
        child = node.children.get(self._key(tokens, position))
        if child is None:
            return None, 0
        size = self.block_tokens
        most = min(child.count, max_blocks - position)
        wanted = tokens[position * size : (position + most) * size]
        differs = wanted != child.tokens[: most * size]
        first = int(differs.argmax())
        return child, first // size if differs[first] else most

    def _digests(self, node: Node) -> list[int]:
        """One digest for every block of the run; those of its ancestors are made first."""
        incomplete: list[Node] = []
        step: Node | None = node
        while step is not None and len(step.digests) < step.count:
            incomplete.append(step)
            step = step.parent
        for step in reversed(incomplete):
            parent = step.parent
            assert parent is not None
            digest = step.digests[-1] if step.digests else parent.digests[-1]
            for block in range(len(step.digests), step.count):
                digest = chain_digest(digest, self._key(step.tokens, block))
                step.digests.append(digest)
        return node.digests

    def _root(self, namespace: bytes) -> Node:
        root = self._roots.get(namespace)
        if root is None:
            root = Node(namespace, None, 0, _NO_BLOCKS, _NO_BLOCKS)
            root.digests.append(hash(namespace))
            self._roots[namespace] = root
        return root

    def _lock_leading(self, node: Node, count: int) -> Node:
        """Locks the first `count` blocks of a run; cuts the others off if there are any."""
        if node.locks == 0:
            self.evictable_blocks -= count
        if count < node.count:
            if node.locks == 0:
                self._policy.shrink(node, count)
            node = self._split(node, count)
        elif node.locks == 0:
            self._policy.remove(node)
        node.locks += 1
        return node

    def _attach(self, node: Node, parent: Node) -> None:
        node.parent = parent
        node.key = self._key(node.tokens, 0)
        parent.children[node.key] = node
        if parent.parent is None:
            self._first_keys[node.key] = self._first_keys.get(node.key, 0) + 1

    def _detach(self, node: Node) -> None:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        node.parent = None
        if parent.parent is None:
            self._first_keys[node.key] -= 1
            if self._first_keys[node.key] == 0:
                del self._first_keys[node.key]
            if not parent.children:
                del self._roots[parent.namespace]

    def _split(self, node: Node, count: int) -> Node:
        """Cuts the first `count` blocks off into a new parent, which is answered.

        `node` stays the lower half: whoever locks it ends there, and if it is evictable its
        place in the policy is that of the tail. The new parent is about to be locked.
        """
        size = self.block_tokens
        parent = node.parent
        assert parent is not None
        upper = Node(
            node.namespace,
            parent,
            node.start,
            node.tokens[: count * size].copy(),
            node.blocks[:count].copy(),
        )
        upper.digests = node.digests[:count]
        upper.locks = node.locks
        upper.reused = node.reused
        upper.key = node.key
        parent.children[upper.key] = upper
        node.tokens = node.tokens[count * size : node.count * size].copy()
        node.blocks = node.blocks[count : node.count].copy()
        del node.digests[:count]
        node.count -= count
        node.start += count
        self._attach(node, upper)
        return upper

    def _grow(self, node: Node, tokens: Tokens, blocks: Blocks) -> Node:
        """Puts new blocks behind `node`: into its run if it is the caller's alone, else below.

        A run that was reused is not continued: its new blocks were used once.
        """
        size = self.block_tokens
        added = int(blocks.size)
        self.num_blocks += added
        if node.parent is None or node.locks > 1 or node.children or node.reused:
            start = node.start + node.count
            child = Node(node.namespace, node, start, tokens.copy(), blocks.copy())
            child.locks = 1
            self._attach(child, node)
            return child
        end = node.count + added
        if end > node.blocks.size:
            node.resize(max(_MIN_CAPACITY, end + end // 2), size)
        node.tokens[node.count * size : end * size] = tokens
        node.blocks[node.count : end] = blocks
        node.count = end
        return node


def _joined(runs: list[Blocks]) -> Blocks:
    if len(runs) == 1:
        return runs[0]
    return np.concatenate(runs) if runs else _NO_BLOCKS
