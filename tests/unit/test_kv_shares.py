"""What a tenant may take of the pool, and what it must leave."""

from __future__ import annotations

import pytest

from kvcache.core.shares import GroupLimits, GroupShare, available_blocks, obtainable_blocks


def share(
    in_use: int, cached: int = 0, expected: int = 0, floor: int = 0, quota: int | None = None
) -> GroupShare:
    return GroupShare(in_use, cached, expected, GroupLimits(floor, quota))


@pytest.mark.parametrize(
    ("free", "shares", "available", "obtainable"),
    [
        (5, [share(3, 2, 1)], 8, 7),  # an expectation must go first
        (5, [share(3, 2), share(4, 3, 1)], 11, 10),
        # What others may claim is left over, wherever it is.
        (5, [share(0), share(4, floor=6)], 3, 3),
        (5, [share(0), share(6, 1, floor=6)], 6, 6),
        (2, [share(0), share(4, 3, floor=6)], 3, 3),
        (2, [share(0), share(0, 9, floor=6)], 5, 5),
        (0, [share(0), share(0, 2, 5, floor=4)], 3, 2),
        (3, [share(0), share(0, floor=2), share(0, floor=2)], 0, 0),
        # The own floor needs no protection from oneself, nor does it add anything.
        (4, [share(1, floor=9)], 4, 4),
        # A quota bounds what is charged: the own cached blocks make room, in use stays.
        (9, [share(3, 2, quota=6)], 3, 3),
        (9, [share(3, 0, 2, quota=6)], 3, 1),
        (9, [share(7, quota=6)], 0, 0),
        (1, [share(0, 1, quota=6), share(0, 1)], 3, 3),
    ],
)
def test_what_a_group_can_have(
    free: int, shares: list[GroupShare], available: int, obtainable: int
) -> None:
    by_group = dict(enumerate(shares))
    assert available_blocks(free, by_group, 0) == available
    assert obtainable_blocks(free, by_group, 0) == obtainable


def test_hits_go_into_use_or_are_expected() -> None:
    before = share(5, 4, 3, floor=9)
    assert before.lacking == 4
    assert before.with_hits(2, 1, in_use=True) == share(8, 2, 2, floor=9)
    assert before.with_hits(2, 1, in_use=False) == share(5, 2, 5, floor=9)
    assert (before.charged, before.takeable) == (12, 3)
    assert share(1, 9, floor=20).takeable == 0
    assert share(30, 9, floor=20).takeable == 9


def test_over_the_quota_own_blocks_must_go() -> None:
    assert share(5, 4, 3, quota=14).over_quota(2) == 0
    assert share(5, 4, 3, quota=14).over_quota(5) == 3
    assert share(5, 4, 3).over_quota(500) == 0
