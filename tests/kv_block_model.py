"""A model of a core that looks at every block for every answer.

Blocks of one token, so that a block is known by all tokens up to it. The model knows nothing of
rings, counters and block numbers.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field

from hypothesis import event

from kvcache.core.states import HolderKind

Key = tuple[int, tuple[int, ...]]  # group (each has a namespace), all tokens up to the block
GROUPS = (0, 1, 2)


@dataclass
class Block:
    """A block of the index."""

    level: int
    holders: dict[int, HolderKind]
    reused: bool = False
    released_at: int = 0
    order: int = 0

    @property
    def can_be_had(self) -> bool:
        """CACHED or EXPECTED."""
        return all(kind is HolderKind.EXPECT for kind in self.holders.values())


@dataclass
class Holder:
    """Its first `computed` blocks are in the index, the others are its own."""

    kind: HolderKind
    group: int
    level: int
    tokens: tuple[int, ...]
    computed: int

    def keys(self, start: int = 0) -> list[Key]:
        return [(self.group, self.tokens[:end]) for end in range(start + 1, self.computed + 1)]


@dataclass
class Model:
    """Everything is looked for by going through all of it."""

    pool: int
    weight: int
    protected: int
    floors: tuple[int, ...]
    quotas: tuple[int | None, ...]
    blocks: dict[Key, Block] = field(default_factory=dict)
    holders: dict[int, Holder] = field(default_factory=dict)
    expiry: list[int] = field(default_factory=lambda: [-1] * 8)
    now: int = 0
    orders: int = 0
    evicted: int = 0

    # --- counting ---

    def private(self, group: int | None = None) -> int:
        chosen = (h for h in self.holders.values() if group in (None, h.group))
        return sum(len(holder.tokens) - holder.computed for holder in chosen)

    def cached(self, groups: Collection[int] = GROUPS) -> list[Key]:
        return [key for key, b in self.blocks.items() if not b.holders and key[0] in groups]

    def to_be_had(self, groups: Collection[int] = GROUPS) -> int:
        return sum(b.can_be_had for key, b in self.blocks.items() if key[0] in groups)

    def charged(self, group: int) -> int:
        return sum(key[0] == group for key in self.blocks) + self.private(group)

    def in_use(self, group: int) -> int:
        return self.charged(group) - self.to_be_had([group])

    def free(self) -> int:
        return self.pool - len(self.blocks) - self.private()

    def spare(self, group: int) -> int:
        others = [h for h in GROUPS if h != group]
        lacking = sum(max(0, self.floors[h] - self.in_use(h)) for h in others)
        return self.free() + self.to_be_had() - lacking

    def available(self, group: int) -> int:
        quota = self.quotas[group]
        limits = [self.spare(group)]
        if quota is not None:
            limits.append(quota - self.in_use(group))
        return max(0, min(limits))

    # --- room ---

    def victim(self, groups: Collection[int]) -> Key | None:
        def rank(key: Key) -> int:
            block = self.blocks[key]
            return 0 if block.released_at <= self.expiry[block.level] else block.level

        def ring(key: Key) -> tuple[int, int, bool]:
            return key[0], self.blocks[key].level, self.blocks[key].reused

        def age(key: Key) -> tuple[int, tuple[int, int, bool], int]:
            return self.blocks[key].released_at, ring(key), self.blocks[key].order

        cached = sorted(self.cached(groups), key=age)
        if not cached:
            return None
        lowest = min(map(rank, cached))
        rings = {ring(key) for key in cached if rank(key) == lowest}
        once = [key for key in cached if ring(key) in rings and not self.blocks[key].reused]
        reused = [key for key in cached if ring(key) in rings and self.blocks[key].reused]
        if not once or not reused:
            return (once or reused)[0]
        idle_once, idle_reused = (self.now - age(some[0])[0] for some in (once, reused))
        event("a choice between once and reused")
        is_protected = len(reused) <= min(self.protected, len(once))
        return reused[0] if idle_reused > self.weight * idle_once and not is_protected else once[0]

    def evict(self, groups: Collection[int]) -> bool:
        victim = self.victim(groups)
        if victim is None:
            return False
        group, tokens = victim
        size = len(tokens)
        assert not any(g == group and len(t) > size and t[:size] == tokens for g, t in self.blocks)
        del self.blocks[victim]
        self.evicted += 1
        return True

    def make_room(self, count: int, group: int) -> bool:
        quota = self.quotas[group]
        while count and quota is not None and self.charged(group) + count > quota:
            if not self.evict([group]):
                return False
        while self.free() < count:
            above = [h for h in GROUPS if h == group or self.charged(h) > self.floors[h]]
            if not self.evict(above):
                return False
        return True

    def could_have(self, count: int, group: int) -> bool:
        trial = copy.deepcopy(self)
        return count <= self.available(group) and trial.make_room(count, group)

    def obtainable(self, group: int) -> int:
        return next(n for n in range(self.pool, -1, -1) if self.could_have(n, group))

    # --- holders ---

    def hits(self, group: int, tokens: tuple[int, ...], most: int) -> int:
        ends = range(1, most + 1)
        known = itertools.takewhile(lambda end: (group, tokens[:end]) in self.blocks, ends)
        return sum(1 for _ in known)

    def hold(self, number: int, holder: Holder, keys: list[Key]) -> None:
        for key in keys:
            block = self.blocks[key]
            block.holders[number] = holder.kind
            block.level = max(block.level, holder.level)

    def begin(self, number: int, holder: Holder, *, is_reuse: bool) -> int | None:
        """Answers None, or what could have been had; then nothing has changed."""
        held = copy.deepcopy(self)
        keys = holder.keys()
        held.hold(number, holder, keys)
        count = len(holder.tokens) - holder.computed
        went_into_use = held.to_be_had() < self.to_be_had()
        if not held.could_have(count, holder.group) or (
            went_into_use and held.spare(holder.group) < 0
        ):
            return held.obtainable(holder.group)
        if is_reuse and keys and not self.blocks[keys[-1]].holders and self.weight:
            for key in keys:
                self.blocks[key].reused = True
        self.hold(number, holder, keys)
        assert self.make_room(count, holder.group)
        self.holders[number] = holder
        return None

    def append(self, number: int, token: int) -> bool:
        holder = self.holders[number]
        if not self.could_have(1, holder.group):
            return False
        assert self.make_room(1, holder.group)
        holder.tokens += (token,)
        return True

    def commit(self, number: int, computed: int) -> None:
        holder = self.holders[number]
        before, holder.computed = holder.computed, computed
        for key in holder.keys(before):
            self.blocks.setdefault(key, Block(holder.level, {}))
            self.hold(number, holder, [key])

    def release(self, number: int) -> None:
        holder = self.holders.pop(number)
        self.now += holder.kind is HolderKind.SEQUENCE
        for key in reversed(holder.keys()):
            block = self.blocks[key]
            del block.holders[number]
            if not block.holders:
                self.orders += 1
                block.released_at, block.order = self.now, self.orders
