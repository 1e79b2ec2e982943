"""Which records go when there are too many."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.flight.kinds import FlightKind, kind_of, surplus

OOM, DEATH, CRITICAL = FlightKind.OOM, FlightKind.ENGINE_DEATH, FlightKind.CRITICAL

kinds_of = st.lists(st.sampled_from(FlightKind), max_size=40)


@pytest.mark.parametrize(
    ("kinds", "limit", "dropped"),
    [
        ([OOM, OOM], 2, []),
        ([DEATH, OOM, OOM, OOM], 3, [1]),  # not the death, which is older
        ([DEATH, OOM, OOM, OOM], 2, [1, 2]),
        ([DEATH, OOM], 1, [0]),  # equally common: the oldest
        ([OOM, DEATH, DEATH, CRITICAL], 2, [0, 1]),
        ([OOM], 0, [0]),
    ],
)
def test_the_oldest_of_the_commonest_kind_goes(
    kinds: list[FlightKind], limit: int, dropped: list[int]
) -> None:
    assert surplus(kinds, limit) == dropped


@given(kinds_of, st.integers(0, 45))
def test_as_many_are_left_as_may_be_and_of_each_kind_the_newest(
    kinds: list[FlightKind], limit: int
) -> None:
    dropped = surplus(kinds, limit)
    assert dropped == sorted(set(dropped))
    left = [index for index in range(len(kinds)) if index not in dropped]
    assert len(left) == min(limit, len(kinds))
    if left:
        assert left[-1] == len(kinds) - 1  # the newest
    for kind in FlightKind:
        gone = [index for index in dropped if kinds[index] is kind]
        kept = [index for index in left if kinds[index] is kind]
        assert not gone or not kept or max(gone) < min(kept)
    if len(set(kinds)) <= limit:
        assert {kinds[index] for index in left} == set(kinds)


@given(kinds_of, st.integers(1, 20))
def test_kinds_that_give_have_no_fewer_left_than_others_have(
    kinds: list[FlightKind], limit: int
) -> None:
    dropped = surplus(kinds, limit)
    left = Counter(kind for index, kind in enumerate(kinds) if index not in dropped)
    gave = {kinds[index] for index in dropped}
    most = max(left.values(), default=0)
    assert all(left[kind] >= most - 1 for kind in gave)


def test_kinds_of_incidents() -> None:
    assert kind_of("device lost") is FlightKind.DEVICE_LOST
    assert kind_of("oom") is FlightKind.OOM
    assert kind_of("never heard of") is FlightKind.OTHER
