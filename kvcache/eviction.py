"""In which order runs of cached blocks are given up.

A policy keeps the evictable nodes of the prefix index: those that no sequence holds. The index
tells it when a node becomes evictable or is taken, and asks it for a victim. The victim must
be a leaf among the evictable nodes, because the blocks of a prefix are of no use without
those before them.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol, get_args

from kvcache.errors import InvalidArgumentError

PolicyName = Literal["reuse-aware", "lru"]
REUSE_WEIGHT = 2  # a reused block counts as idle for one part in so many of the time
PROTECTED_SHARE = 0.25  # of the pool, for reused blocks


class Link:
    """The part of a node that policies see and use."""

    __slots__ = ("after", "before", "count", "released_at", "reused")

    def __init__(self, count: int) -> None:
        self.count = count  # blocks
        self.reused = False  # hit by a later request when nobody held it
        self.released_at = 0  # for the policy
        self.before: Link | None = None
        self.after: Link | None = None


class Victim(NamedTuple):
    """Where to take blocks from, and how many at most before asking again."""

    link: Link
    max_blocks: int


class EvictionPolicy(Protocol):
    """What the prefix index asks of a policy; every call must be O(1)."""

    def tick(self) -> None:
        """A sequence lets go of its path: `add` follows for what it alone held."""

    def add(self, link: Link) -> None:
        """A node has become evictable. Its evictable children were added before it."""

    def remove(self, link: Link) -> None:
        """A node is held again, or gone."""

    def shrink(self, link: Link, blocks: int) -> None:
        """An evictable node is about to lose `blocks` of its blocks."""

    def victim(self) -> Victim | None:
        """The evictable leaf to take blocks from; it stays until it is removed."""


class LruPolicy:
    """Least recently released first: a doubly linked list, oldest at the front.

    Whoever releases a path adds it from the leaf to the root, and whoever holds a node holds
    its ancestors. So a parent always stands behind all its children, and the node at the
    front is a leaf: no search, no heap, no set of leaves.
    """

    def __init__(self) -> None:
        self._ends = Link(0)  # sentinel of a ring
        self._ends.before = self._ends.after = self._ends

    @property
    def front(self) -> Link | None:
        """The least recent node."""
        front = self._ends.after
        return front if front is not self._ends else None

    def tick(self) -> None:
        """The order of `add` is all that counts."""

    def add(self, link: Link) -> None:
        """Appends as the most recent."""
        last = self._ends.before
        assert last is not None
        link.before, link.after = last, self._ends
        last.after = self._ends.before = link

    def remove(self, link: Link) -> None:
        """Unlinks."""
        before, after = link.before, link.after
        assert before is not None
        assert after is not None
        before.after, after.before = after, before
        link.before = link.after = None

    def shrink(self, link: Link, blocks: int) -> None:
        """Sizes do not matter."""

    def victim(self) -> Victim | None:
        """The node at the front, whole."""
        front = self.front
        return None if front is None else Victim(front, front.count)


class ReuseAwarePolicy:
    """Gives up what is least worth keeping: recompute cost times chance of reuse.

    A block costs about as much to compute as any other, so the chance decides. It falls with
    the time since the last use, and is higher for blocks that were hit before: those count as
    idle for a `weight`-th of the time. Hence two LRU lists, of blocks used once and of reused
    ones, and the victim is the front that counts as idle longer. Time is counted in releases
    of sequences, so that an idle night changes nothing.

    Scans: `protected_share` of the pool is not taken from reused blocks as long as there are
    others (but for the case that fewer blocks were used once than reused: then new sequences
    could not become warm). So one pass over any number of new prompts leaves a warm session
    of that size alone.

    The front of either list is a leaf when it is the victim. A parent is released no earlier
    than its children and was reused if one of them was. So a child of a reused front is in the
    list of those used once, at whose front somebody is idle for at least as long as the
    parent, and counts as idle longer.
    """

    def __init__(
        self,
        pool_blocks: int,
        *,
        weight: int = REUSE_WEIGHT,
        protected_share: float = PROTECTED_SHARE,
    ) -> None:
        self._once = LruPolicy()
        self._reused = LruPolicy()
        self._once_blocks = 0
        self._reused_blocks = 0
        self._weight = weight
        self._protected_blocks = int(pool_blocks * protected_share)
        self._now = 0

    def tick(self) -> None:
        """One release more."""
        self._now += 1

    def add(self, link: Link) -> None:
        """Appends to the list that the node belongs to."""
        link.released_at = self._now
        if link.reused:
            self._reused.add(link)
            self._reused_blocks += link.count
        else:
            self._once.add(link)
            self._once_blocks += link.count

    def remove(self, link: Link) -> None:
        """Unlinks; the node has not changed its list since it was added."""
        self.shrink(link, link.count)
        (self._reused if link.reused else self._once).remove(link)

    def shrink(self, link: Link, blocks: int) -> None:
        """Counts the blocks out."""
        if link.reused:
            self._reused_blocks -= blocks
        else:
            self._once_blocks -= blocks

    def victim(self) -> Victim | None:
        """The front that is worth less, and its blocks up to where that may change."""
        once, reused = self._once.front, self._reused.front
        if once is None:
            return self._reused.victim()
        if reused is None or not self._is_idle_longer(reused, once):
            return Victim(once, once.count)
        protected = min(self._protected_blocks, self._once_blocks)
        if self._reused_blocks > protected:
            return Victim(reused, min(reused.count, self._reused_blocks - protected))
        # Every block less of the once used ones lowers the bound that protects the others.
        spare = self._once_blocks - self._reused_blocks + 1
        return Victim(once, min(once.count, spare))

    def _is_idle_longer(self, reused: Link, once: Link) -> bool:
        return self._now - reused.released_at > self._weight * (self._now - once.released_at)


def create_policy(name: PolicyName, pool_blocks: int) -> EvictionPolicy:
    """A policy for a pool of that many blocks; see the classes for what the names mean."""
    match name:
        case "reuse-aware":
            return ReuseAwarePolicy(pool_blocks)
        case "lru":
            return LruPolicy()
    raise InvalidArgumentError("policy", name, f"one of {', '.join(get_args(PolicyName))}")
