"""In which order runs of cached blocks are given up.

A policy keeps the evictable nodes of the prefix index: those that no sequence holds. The index
tells it when a node becomes evictable or is taken, and asks it for a victim. The victim must
be a leaf among the evictable nodes, because the blocks of a prefix are of no use without
those before them.
"""

from __future__ import annotations

from typing import Protocol


class Link:
    """The part of a node that a policy owns: its place in an intrusive list."""

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: Link | None = None
        self.after: Link | None = None


class EvictionPolicy(Protocol):
    """What the prefix index asks of a policy; every call must be O(1)."""

    def add(self, link: Link) -> None:
        """A node has become evictable. Its evictable children were added before it."""

    def remove(self, link: Link) -> None:
        """A node is held again, or gone."""

    def victim(self) -> Link | None:
        """The evictable leaf to take blocks from; stays until it is removed."""


class LruPolicy:
    """Least recently released first: a doubly linked list, oldest at the front.

    Whoever releases a path adds it from the leaf to the root, and whoever holds a node holds
    its ancestors. So a parent always stands behind all its children, and the node at the
    front is a leaf: no search, no heap, no set of leaves.
    """

    def __init__(self) -> None:
        self._ends = Link()  # sentinel of a ring
        self._ends.before = self._ends.after = self._ends

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

    def victim(self) -> Link | None:
        """The node at the front."""
        front = self._ends.after
        return front if front is not self._ends else None
