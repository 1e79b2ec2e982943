"""Lost, repeated and differing tokens are told apart, and equality is the only exactness."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.drill.compare import Damage, compare

# No token twice, so that what was cut out or sent again is known for certain.
DISTINCT = st.lists(st.integers(0, 10_000), min_size=1, max_size=60, unique=True)


@given(st.lists(st.integers(0, 2), max_size=30), st.lists(st.integers(0, 2), max_size=30))
def test_no_damage_is_equality(expected: list[int], received: list[int]) -> None:
    assert bool(compare(expected, received)) == (expected != received)
    assert compare(expected, expected) == Damage()


@given(DISTINCT, st.data())
def test_a_piece_cut_out_is_lost(expected: list[int], data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, len(expected)))
    end = data.draw(st.integers(begin, len(expected)))
    received = expected[:begin] + expected[end:]
    assert compare(expected, received) == Damage(lost=end - begin)


@given(DISTINCT, st.data())
def test_a_piece_sent_again_is_repeated(expected: list[int], data: st.DataObject) -> None:
    end = data.draw(st.integers(0, len(expected)))
    begin = data.draw(st.integers(0, end))
    received = expected[:end] + expected[begin:]
    assert compare(expected, received) == Damage(repeated=end - begin)


@given(DISTINCT, st.data())
def test_another_text_is_differing_from_its_beginning_on(
    expected: list[int], data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, len(expected) - 1))
    others = data.draw(st.lists(st.integers(20_000, 30_000), min_size=1, max_size=60))
    damage = compare(expected, expected[:begin] + others)
    assert damage == Damage(differing=max(len(others), len(expected) - begin))


def test_every_seam_of_a_stream_counts() -> None:
    expected = list(range(100))
    received = expected[:20] + expected[15:50] + expected[57:]
    assert compare(expected, received) == Damage(lost=7, repeated=5)
    assert compare(expected, [*received, 99]) == Damage(lost=7, repeated=6)


def test_a_few_tokens_that_agree_by_chance_are_no_seam() -> None:
    expected = list(range(100))
    chance = expected[:40] + expected[60:67] + list(range(200, 253))
    assert compare(expected, chance) == Damage(differing=60)


@pytest.mark.parametrize("period", [1, 3])
def test_losses_and_repeats_in_a_text_that_repeats_itself(period: int) -> None:
    expected = [n % period for n in range(60)]
    assert compare(expected, expected[:30] + expected[36:]) == Damage(lost=6)
    assert compare(expected, expected + expected[-6:]) == Damage(repeated=6)
