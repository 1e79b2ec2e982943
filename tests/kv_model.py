"""A naive model of the cache manager: sets, dicts and recounting, no cleverness.

`ContentMemory` stands for the KV memory: every slot has a digest of (namespace, all tokens up to
its own), so that two slots are equal exactly when their K and V would be. `IndexMirror` follows
the prefix index as a listener. `Holdings` says who holds which block and recounts everything.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Key = tuple[bytes, tuple[int, ...]]  # a namespace, and all tokens up to the end of a block
Digests = NDArray[np.uint64]
POISON = np.uint64(0xDEAD_DEAD_DEAD_DEAD)
_MASK = 2**64 - 1


def next_digest(previous: int, token: int) -> int:
    """The content of a slot, from that of the slot before it."""
    mixed = ((previous ^ (token + 0x9E37_79B9)) * 0xBF58_476D_1CE4_E5B9 + 1) & _MASK
    return mixed ^ (mixed >> 31)


def digests_of(tokens: Iterable[int], last: int) -> list[int]:
    """What the slots of these tokens contain when they are computed right, behind `last`."""
    found = []
    for token in tokens:
        last = next_digest(last, token)
        found.append(last)
    return found


class ContentMemory:
    """A BlockMemory of 8 bytes a token."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.block_bytes = 8 * block_tokens
        self.slots = np.full((num_blocks, block_tokens), POISON)
        self.copied_blocks = 0

    def copy(self, source: int, destination: int) -> None:
        self.slots[destination] = self.slots[source]
        self.copied_blocks += 1

    def read(self, block: int) -> memoryview:
        return self.slots[block].data.cast("B")

    def write(self, block: int, data: bytes | memoryview) -> None:
        self.slots[block] = np.frombuffer(data, np.uint64)

    def grow(self, num_blocks: int) -> None:
        """Makes room for more blocks; called before the manager grows."""
        missing = num_blocks - len(self.slots)
        if missing > 0:
            more = np.full((missing, self.slots.shape[1]), POISON)
            self.slots = np.concatenate((self.slots, more))

    def shrink(self, num_blocks: int) -> None:
        """Gives the tail back; called after the manager has shrunk."""
        self.slots = self.slots[:num_blocks].copy()


class IndexMirror:
    """The prefix index as a listener sees it: prefix -> block and back."""

    def __init__(self, memory: ContentMemory) -> None:
        self.block_of: dict[Key, int] = {}
        self.key_of: dict[int, Key] = {}
        self.content: dict[int, Digests] = {}  # what the indexed blocks must contain
        self.removals: list[tuple[int, Key]] = []  # since the last `take_removals`
        self.moves: list[tuple[int, int]] = []  # since the last `take_moves`
        self._epochs: Counter[bytes | None] = Counter()  # flushes of a namespace, and of all
        self._children: Counter[Key] = Counter()
        self._memory = memory
        self._block_tokens = memory.slots.shape[1]

    # --- IndexListener ---

    def stored(
        self,
        namespace: bytes,
        parent: int | None,
        blocks: Sequence[int],
        token_ids: Sequence[int],
    ) -> None:
        prefix: tuple[int, ...] = ()
        last = self.root(namespace)
        if parent is not None:
            parent_namespace, prefix = self.key_of[parent]
            assert parent_namespace == namespace, "a path stays in its namespace"
            last = int(self.content[parent][-1])
        assert len(token_ids) == len(blocks) * self._block_tokens
        for number, block in enumerate(blocks):
            start = number * self._block_tokens
            self._children[namespace, prefix] += 1
            tokens = token_ids[start : start + self._block_tokens]
            prefix = (*prefix, *tokens)
            key = namespace, prefix
            assert key not in self.block_of, "a prefix is in the index once"
            assert block not in self.key_of, "a block has one identity"
            content = np.array(digests_of(tokens, last), np.uint64)
            last = int(content[-1])
            assert (self._memory.slots[block] == content).all(), "published without its content"
            self.block_of[key], self.key_of[block], self.content[block] = block, key, content

    def removed(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            assert (self._memory.slots[block] == self.content[block]).all(), "spilled too late"
            key = self._forget(block)
            assert self._children[key] == 0, "only leaves are evicted"
            self.removals.append((block, key))

    def cleared(self, namespace: bytes | None) -> None:
        self._epochs[namespace] += 1
        for block, key in list(self.key_of.items()):
            if namespace in (None, key[0]):
                self._forget(block)

    def moved(self, moves: Sequence[tuple[int, int]]) -> None:
        for source, destination in moves:
            key = self.key_of.pop(source, None)
            if key is not None:
                assert destination not in self.key_of
                self.block_of[key], self.key_of[destination] = destination, key
                self.content[destination] = self.content.pop(source)
        self.moves += moves

    # --- questions ---

    def root(self, namespace: bytes) -> int:
        """What K and V rest on; another one after every flush, as if weights had changed."""
        epoch = self._epochs[namespace] * 1000 + self._epochs[None]
        return zlib.crc32(namespace) + (epoch << 32)

    def take_removals(self) -> list[tuple[int, Key]]:
        removals, self.removals = self.removals, []
        return removals

    def take_moves(self) -> list[tuple[int, int]]:
        moves, self.moves = self.moves, []
        return moves

    def match(self, namespace: bytes, tokens: Sequence[int]) -> list[int]:
        """Blocks of the longest cached prefix that leaves the last token to be computed."""
        found: list[int] = []
        for end in range(self._block_tokens, len(tokens), self._block_tokens):
            block = self.block_of.get((namespace, tuple(tokens[:end])))
            if block is None:
                break
            found.append(block)
        return found

    def longest_partial(self, namespace: bytes, tokens: Sequence[int], blocks: int) -> int:
        """The most tokens behind `blocks` matched ones that one further block has in common."""
        start = blocks * self._block_tokens
        prefix, rest = tuple(tokens[:start]), tokens[start:-1]
        best = 0
        for key_namespace, key in self.block_of:
            if (key_namespace, len(key)) == (namespace, start + self._block_tokens):
                if key[:start] != prefix:
                    continue
                common = 0
                for mine, theirs in zip(rest, key[start:], strict=False):
                    if mine != theirs:
                        break
                    common += 1
                best = max(best, common)
        return best

    def check_content(self) -> None:
        if self.content:
            blocks = list(self.content)
            wanted = np.stack([self.content[block] for block in blocks])
            assert (self._memory.slots[blocks] == wanted).all(), "a cached block was overwritten"

    def _forget(self, block: int) -> Key:
        key = self.key_of.pop(block)
        del self.block_of[key], self.content[block]
        namespace, prefix = key
        self._children[namespace, prefix[: -self._block_tokens]] -= 1
        return key


@dataclass(slots=True)
class Hold:
    """Blocks that something else than a sequence holds."""

    namespace: bytes
    tokens: tuple[int, ...]
    blocks: list[int]
    kind: str  # pin, load, store, expect
    new_from: int = 0  # for a load: where its own blocks begin
    expires_at: float = float("inf")
    is_flushed: bool = False
    content: list[int] = field(default_factory=list)  # for a load: what is to come in

    def follow(self, moves: Sequence[tuple[int, int]]) -> None:
        for source, destination in moves:
            self.blocks = [destination if block == source else block for block in self.blocks]
