"""The rule of admission, on plain numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kvcache.admission import Available, Need, Shortage

blocks = st.integers(0, 50)


@given(blocks, blocks, blocks, blocks, blocks, blocks)
def test_what_fits_takes_no_more_than_there_is(
    new: int, hits: int, headroom: int, pool: int, owed: int, quota: int
) -> None:
    need = Need(new, hits, headroom)
    available = Available(pool, pool - owed, quota)
    short = need.short_blocks(available)
    if short <= 0:
        assert new + hits + headroom <= pool - owed
        assert new + hits <= quota
    else:
        assert (
            Need(new, hits, headroom).short_blocks(
                Available(pool + short, pool - owed + short, quota + short)
            )
            == 0
        )


@given(blocks, blocks, blocks, blocks, blocks)
def test_the_reason_is_the_widest_bound_that_is_hit(
    new: int, headroom: int, pool: int, owed: int, quota: int
) -> None:
    need, available = Need(new, 0, headroom), Available(pool, pool - owed, quota)
    if need.short_blocks(available) <= 0:
        return
    assert need.shortage(available) is (
        Shortage.POOL
        if new + headroom > pool
        else Shortage.FLOORS
        if new + headroom > pool - owed
        else Shortage.QUOTA
    )
