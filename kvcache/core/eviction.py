"""In which order cached blocks are given up.

A block that nobody holds is worth its recompute cost times the chance that it is asked for
again. Every block costs about as much as any other, so the chance decides. It falls with the
time since the last use, and is higher for blocks that were hit before: those count as idle for
a part of the time only. Hence rings of blocks used once and of reused ones, each least recently
released first, and the victim is the front that counts as idle longer. Time is counted in
releases of sequences, so that an idle night changes nothing.

Scans: `protected_blocks` are not taken from reused blocks as long as there are others (but for
the case that fewer blocks were used once than reused: then new sequences could not become
warm). So one pass over any number of new prompts leaves a warm session of that size alone.

Levels: blocks of a higher retention level are given up after all of lower ones, until they
expire. There is a pair of rings for every level of every group of tenants.

Why a victim is always a leaf. Let block p be cached, and c a cached block behind it (no other
ones are: whoever holds a block holds those before it). Both are of one group, as a namespace
is, so that c may be taken whenever p may.

- p was released no earlier than c, and of one release c was added first, from the tail up.
- p is reused if c is, and its level is no lower: a holder marks and raises its whole path.
- p does not rank below c. Without expiry that is the level; if p has expired then so has c,
  which was released no later and at a level that expires no earlier (`set_expiry`).

So if p ranks lowest, c does as well, and the front f of the ring of c, which was released no
later than c. Then p is not chosen, whatever is protected:

- p and c in one ring: p is not its front, c is nearer.
- Both used once, or both reused: f is idle for at least as long as p, and on a tie of the lower
  class, for then it has the lower level.
- p reused and c used once: the front chosen of those used once is idle for at least as long as
  p, and p would have to be idle for more than `reuse_weight` >= 1 times as long.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, get_args

from kvcache.errors import ConservationError, InvalidArgumentError

PolicyName = Literal["reuse-aware", "lru"]
GROUPS = 32
LEVELS = 8
REUSE_WEIGHT = 2  # a reused block counts as idle for one part in so many of the time
PROTECTED_SHARE = 0.25  # of the pool, for reused blocks


class EvictionRule(NamedTuple):
    """How to choose between blocks used once and reused ones."""

    reuse_weight: int  # 0: no block counts as reused, plain LRU
    protected_blocks: int

    @classmethod
    def of(cls, policy: PolicyName, pool_blocks: int) -> EvictionRule:
        """The rule that a policy means, for a pool of that many blocks."""
        match policy:
            case "reuse-aware":
                return cls(REUSE_WEIGHT, int(pool_blocks * PROTECTED_SHARE))
            case "lru":
                return cls(0, 0)
        raise InvalidArgumentError("policy", policy, f"one of {', '.join(get_args(PolicyName))}")

    def takes_reused(self, once: Side, reused: Side) -> bool:
        """Whether the reused block that is idle longest is worth less than the other one."""
        is_stale = reused.idle_ticks > self.reuse_weight * once.idle_ticks
        return is_stale and reused.blocks > min(self.protected_blocks, once.blocks)


class Side(NamedTuple):
    """What the rule looks at: of blocks used once, or of reused ones."""

    idle_ticks: int  # of the one that is idle longest
    blocks: int  # in all rings that are looked at


class RingKey(NamedTuple):
    """Whose blocks a ring has. The order is that of classes."""

    group: int
    level: int
    is_reused: bool


class Front(NamedTuple):
    """The least recently released block of a ring."""

    key: RingKey
    block: int
    released_at: int  # tick
    ring_blocks: int


def choose_ring(
    fronts: Iterable[Front], now: int, expiry: Sequence[int], rule: EvictionRule
) -> Front | None:
    """The front to evict next, of those that may be taken; None if there is none.

    `expiry` is by level: blocks released at that tick or before rank as level 0.
    """

    def rank(front: Front) -> int:
        return 0 if front.released_at <= expiry[front.key.level] else front.key.level

    def idle_longest(some: list[Front]) -> Front:
        return min(some, key=lambda front: (front.released_at, front.key))

    ranked = [(rank(front), front) for front in fronts]
    if not ranked:
        return None
    lowest = min(number for number, _ in ranked)
    once: list[Front] = []
    reused: list[Front] = []
    for number, front in ranked:
        if number == lowest:
            (reused if front.key.is_reused else once).append(front)
    if not once or not reused:
        return idle_longest(once or reused)

    def side(some: list[Front]) -> Side:
        idle_ticks = now - idle_longest(some).released_at
        return Side(idle_ticks, sum(front.ring_blocks for front in some))

    return idle_longest(reused if rule.takes_reused(side(once), side(reused)) else once)


class EvictionOrder:
    """The rings of one pool. A ring is an ordered dict: a doubly linked list in C."""

    def __init__(self, num_blocks: int, rule: EvictionRule) -> None:
        self.now = 0  # ticks: releases of sequences
        self._rule = rule
        self._expiry = [-1] * LEVELS
        self._level = [0] * num_blocks
        self._is_reused = [False] * num_blocks
        self._rings: dict[RingKey, OrderedDict[int, int]] = {}  # block -> tick of its release
        self._ring_of: dict[int, RingKey] = {}  # of the cached blocks

    def __len__(self) -> int:
        return len(self._ring_of)

    def __contains__(self, block: object) -> bool:
        return block in self._ring_of

    # --- what a block is worth -----------------------------------------------

    def level(self, block: int) -> int:
        """Retention level of a block."""
        return self._level[block]

    def is_reused(self, block: int) -> bool:
        """Whether a block was hit when nobody held it."""
        return self._is_reused[block]

    def allocated(self, block: int, level: int) -> None:
        """A block begins anew."""
        self._level[block] = level
        self._is_reused[block] = False

    def raise_level(self, block: int, level: int) -> None:
        """A holder of this level holds the block."""
        self._level[block] = max(self._level[block], level)

    def mark_reused(self, block: int) -> None:
        """A block that is held now was hit when nobody held it."""
        self._is_reused[block] = self._rule.reuse_weight > 0

    def set_expiry(self, level: int, tick: int) -> None:
        """Blocks of `level` released at `tick` or before rank as level 0.

        Raises InvalidArgumentError unless the expiry neither falls nor is above that of the
        level below, of which the proof above makes use.
        """
        if not 1 <= level < LEVELS:
            raise InvalidArgumentError("level", level, f"from 1 to {LEVELS - 1}")
        low, high = (self._expiry[level], self.now if level == 1 else self._expiry[level - 1])
        if not low <= tick <= high:
            raise InvalidArgumentError("tick", tick, f"from {low} to {high}")
        self._expiry[level] = tick

    # --- the rings -----------------------------------------------------------

    def add(self, block: int, group: int) -> None:
        """A block became CACHED. What is cached behind it was added before."""
        key = RingKey(group, self._level[block], self._is_reused[block])
        self._rings.setdefault(key, OrderedDict())[block] = self.now
        self._ring_of[block] = key

    def remove(self, block: int) -> int:
        """A block is CACHED no more. Answers the tick at which it was released."""
        key = self._ring_of.pop(block)
        ring = self._rings[key]
        released_at = ring.pop(block)
        if not ring:
            del self._rings[key]
        return released_at

    def victim(self, groups: Container[int]) -> int | None:
        """The block of these groups to evict next; None if none of theirs is CACHED."""
        fronts = (
            Front(key, *next(iter(ring.items())), len(ring))
            for key, ring in self._rings.items()
            if key.group in groups
        )
        front = choose_ring(fronts, self.now, self._expiry, self._rule)
        return None if front is None else front.block

    def ring(self, block: int) -> RingKey:
        """The ring of a CACHED block."""
        return self._ring_of[block]

    def blocks(self) -> Iterator[tuple[int, int]]:
        """All CACHED blocks with the tick of their release, ring by ring, front first."""
        for ring in self._rings.values():
            yield from ring.items()

    def resize(self, num_blocks: int, moves: Mapping[int, int]) -> None:
        """The pool has another size, and blocks have moved to free ones."""
        added = max(0, num_blocks - len(self._level))
        self._level.extend([0] * added)
        self._is_reused.extend([False] * added)
        for source, destination in moves.items():
            self._level[destination] = self._level[source]
            self._is_reused[destination] = self._is_reused[source]
        del self._level[num_blocks:], self._is_reused[num_blocks:]
        self._ring_of = {moves.get(block, block): key for block, key in self._ring_of.items()}
        for key, ring in self._rings.items():
            renamed = ((moves.get(block, block), tick) for block, tick in ring.items())
            self._rings[key] = OrderedDict(renamed)

    def audit(self) -> None:
        """Rings and blocks against each other, O(blocks)."""
        linked = {block: key for key, ring in self._rings.items() for block in ring}
        if linked != self._ring_of or not all(self._rings.values()):
            raise ConservationError("the eviction rings are not those of their blocks")
        for block, key in linked.items():
            if key[1:] != (self._level[block], self._is_reused[block]):
                raise ConservationError(f"block {block} is in the ring of another class")
        for ring in self._rings.values():
            ticks = list(ring.values())
            if ticks != sorted(ticks) or ticks[-1] > self.now:
                raise ConservationError("an eviction ring is not in the order of releases")
