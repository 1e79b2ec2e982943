"""What a tenant may take of the pool, and what it must leave to others.

Tenants are groups by number here. The floor of a group is what others must leave to it: they
borrow it as long as it is not used, and give it back from what they have cached. Its quota is
the most that may be charged to it, in use or cached.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class GroupLimits(NamedTuple):
    """What was promised to a group, and what was denied."""

    floor_blocks: int = 0
    quota_blocks: int | None = None


class GroupShare(NamedTuple):
    """The blocks charged to a group, by what can be done about them, and its limits."""

    in_use: int  # by somebody: neither CACHED nor EXPECTED
    cached: int
    expected: int
    limits: GroupLimits

    @property
    def charged(self) -> int:
        """All of them."""
        return self.in_use + self.cached + self.expected

    @property
    def lacking(self) -> int:
        """Blocks that the group may still claim as its floor."""
        return max(0, self.limits.floor_blocks - self.in_use)

    @property
    def takeable(self) -> int:
        """Cached blocks that other groups may evict."""
        return max(0, min(self.cached, self.charged - self.limits.floor_blocks))

    def over_quota(self, count: int) -> int:
        """Blocks that the group must give up before `count` more are charged to it."""
        quota = self.limits.quota_blocks
        return 0 if quota is None else max(0, self.charged + count - quota)

    def with_hits(self, cached: int, expected: int, *, in_use: bool) -> GroupShare:
        """The share once somebody holds so many of its blocks that were cached and expected.

        They are in use then, or else expected.
        """
        if not in_use:
            return self._replace(cached=self.cached - cached, expected=self.expected + cached)
        return self._replace(
            in_use=self.in_use + cached + expected,
            cached=self.cached - cached,
            expected=self.expected - expected,
        )


def spare_blocks(free: int, shares: Mapping[int, GroupShare], group: int) -> int:
    """Blocks that can be had but for what the floors of other groups lack; may be negative."""
    can_be_had = sum(share.cached + share.expected for share in shares.values())
    lacking = sum(share.lacking for number, share in shares.items() if number != group)
    return free + can_be_had - lacking


def available_blocks(free: int, shares: Mapping[int, GroupShare], group: int) -> int:
    """Blocks that a group can have once no expectation is in the way."""
    own, most = shares[group], spare_blocks(free, shares, group)
    if own.limits.quota_blocks is not None:
        most = min(most, own.limits.quota_blocks - own.in_use)
    return max(0, most)


def obtainable_blocks(free: int, shares: Mapping[int, GroupShare], group: int) -> int:
    """Blocks that a group can have with all expectations kept.

    Not more than are available. That the floors of others are safe then need not be looked at
    again: what they lack is left over, free or cached.
    """
    own = shares[group]
    others = (share.takeable for number, share in shares.items() if number != group)
    most = min(available_blocks(free, shares, group), free + own.cached + sum(others))
    if own.limits.quota_blocks is not None:
        most = min(most, own.limits.quota_blocks - own.in_use - own.expected)
    return max(0, most)
