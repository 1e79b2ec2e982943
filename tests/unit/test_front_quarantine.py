"""Requests that kill engines are told from those that only were there."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from service.front.quarantine import CONVICTING_DEATHS, Quarantine
from service.front.restart import EngineLife

A, B, C, D = 1, 2, 3, 4


def quarantine_of(requests: Iterable[int]) -> Quarantine[int]:
    quarantine: Quarantine[int] = Quarantine()
    for request in requests:
        quarantine.add(request)
    return quarantine


def enter_all(quarantine: Quarantine[int]) -> list[int]:
    """Lets in whoever may; the sequence of a request has its number."""
    entered = []
    while (request := quarantine.next_entrant()) is not None:
        quarantine.enter(request, [request])
        entered.append(request)
    return entered


def die(quarantine: Quarantine[int], *, steps: int = 0, crashed: bool = True) -> int | None:
    """A life without a token; answers the request that it convicts."""
    enter_all(quarantine)
    for _ in range(steps):
        quarantine.stepped()
    conviction = quarantine.died(crashed=crashed).conviction
    return None if conviction is None else conviction.request


def test_after_one_death_all_enter_together_in_order_of_arrival() -> None:
    quarantine = quarantine_of([A, B, C])
    assert enter_all(quarantine) == [A, B, C]
    inquest = quarantine.died(crashed=True)
    assert (inquest.in_flight, inquest.suspects, inquest.conviction) == (3, 0, None)
    quarantine.add(D)
    assert enter_all(quarantine) == [A, B, C, D]
    assert enter_all(quarantine) == []


def test_suspects_enter_one_at_a_time_and_the_others_after_them() -> None:
    quarantine = quarantine_of([A, B, C])
    die(quarantine)
    enter_all(quarantine)
    quarantine.progressed(B)
    inquest = quarantine.died(crashed=True)
    assert (inquest.in_flight, inquest.suspects) == (3, 2)
    quarantine.add(D)
    for suspect in (A, C):
        assert enter_all(quarantine) == [suspect]
        assert enter_all(quarantine) == []
        quarantine.progressed(suspect)
    assert enter_all(quarantine) == [B, D], "nobody is a suspect any more"


def test_a_suspect_that_leaves_makes_way() -> None:
    quarantine = quarantine_of([A, B])
    die(quarantine)
    die(quarantine)
    assert enter_all(quarantine) == [A]
    quarantine.remove(A)
    quarantine.remove(A)
    quarantine.progressed(A)
    assert enter_all(quarantine) == [B]
    quarantine.remove(B)
    quarantine.add(C)
    quarantine.add(D)
    assert enter_all(quarantine) == [C, D]


def test_every_sequence_of_a_request_proves_it() -> None:
    quarantine = quarantine_of([A])
    die(quarantine)
    die(quarantine, steps=3)
    quarantine.add(B)
    quarantine.enter(A, [10, 11])
    quarantine.progressed(10)
    quarantine.progressed(10)
    assert quarantine.next_entrant() is None
    quarantine.progressed(11)
    assert quarantine.next_entrant() == B


def test_one_that_crashes_two_engines_alone_is_convicted() -> None:
    quarantine = quarantine_of([A])
    assert die(quarantine, steps=5) is None
    enter_all(quarantine)
    for _ in range(5):
        quarantine.stepped()
    inquest = quarantine.died(crashed=True)
    assert inquest.conviction is not None
    assert (inquest.conviction.request, inquest.conviction.deaths) == (A, 2)
    assert (inquest.in_flight, inquest.suspects, quarantine.waiting) == (1, 0, 0)


def test_a_token_in_between_acquits() -> None:
    quarantine = quarantine_of([A])
    for _ in range(20):
        assert die(quarantine) is None
        enter_all(quarantine)
        quarantine.progressed(A)
        assert quarantine.died(crashed=True).conviction is None


def test_one_that_crashes_elsewhere_each_time_is_convicted_late() -> None:
    """An innocent one with a long prefill: devices fail at any step of it."""
    quarantine = quarantine_of([A])
    assert [die(quarantine, steps=n) for n in (9, 7, 9, 8)] == [None, None, None, A]


def test_one_that_comes_further_each_time_is_not_convicted() -> None:
    quarantine = quarantine_of([A])
    for steps in range(1, 20):
        assert die(quarantine, steps=steps, crashed=steps % 2 == 0) is None
    enter_all(quarantine)
    quarantine.progressed(A)
    for steps in range(1, 10):  # how far it came before that does not matter any more
        assert die(quarantine, steps=steps, crashed=steps % 2 == 0) is None


def test_kills_from_outside_convict_late() -> None:
    quarantine = quarantine_of([A])
    for _ in range(CONVICTING_DEATHS - 1):
        assert die(quarantine, crashed=False) is None
    assert die(quarantine, crashed=False) == A


def test_a_kill_between_two_crashes_does_not_hide_them() -> None:
    quarantine = quarantine_of([A])
    assert die(quarantine, steps=2) is None
    assert die(quarantine, steps=1, crashed=False) is None
    assert die(quarantine, steps=2) == A


def test_nobody_is_convicted_in_company_nor_by_a_kill_after_it() -> None:
    quarantine = quarantine_of([A, B])
    for _ in range(2):
        assert enter_all(quarantine) == [A, B]
        quarantine.progressed(B)
        assert quarantine.died(crashed=True).conviction is None
    assert die(quarantine, crashed=False) is None
    assert die(quarantine, crashed=True) == A


def test_deaths_do_not_speak_against_those_who_wait() -> None:
    quarantine = quarantine_of([A])
    die(quarantine, crashed=False)
    die(quarantine, crashed=False)
    quarantine.add(B)
    quarantine.add(C)
    die(quarantine, crashed=False)
    assert die(quarantine, crashed=False) == A
    assert enter_all(quarantine) == [B, C]


def test_the_last_one_in_is_the_first_in_the_next_engine() -> None:
    quarantine = quarantine_of([A, B, C])
    die(quarantine)
    die(quarantine)
    assert enter_all(quarantine) == [A]
    quarantine.progressed(A)
    assert enter_all(quarantine) == [B]
    assert quarantine.died(crashed=True).conviction is None
    assert enter_all(quarantine) == [B]
    conviction = quarantine.died(crashed=True).conviction
    assert conviction is not None
    assert (conviction.request, conviction.deaths) == (B, 4)
    assert enter_all(quarantine) == [C]
    quarantine.progressed(C)
    assert enter_all(quarantine) == [A]


@pytest.mark.parametrize("requests", [2, 64, 1000])
def test_the_number_of_neighbours_does_not_matter(requests: int) -> None:
    quarantine = quarantine_of(range(requests))
    killer = requests // 2
    convicted = []
    while not convicted:
        while killer not in (entered := enter_all(quarantine)):
            for request in entered:
                quarantine.progressed(request)
        conviction = quarantine.died(crashed=True).conviction
        if conviction is not None:
            convicted.append((conviction.request, conviction.deaths))
    assert convicted == [(killer, 4)]


def test_what_an_engine_was_good_for() -> None:
    quarantine = quarantine_of([])
    assert quarantine.died(crashed=True).life is EngineLife.NOTHING
    quarantine.add(A)
    assert quarantine.died(crashed=True).life is EngineLife.NOTHING, "it was not in flight"
    enter_all(quarantine)
    assert quarantine.died(crashed=True).life is EngineLife.EVIDENCE
    enter_all(quarantine)
    quarantine.progressed(A)
    assert quarantine.died(crashed=True).life is EngineLife.PROGRESS
    enter_all(quarantine)
    assert quarantine.died(crashed=True).life is EngineLife.EVIDENCE
    enter_all(quarantine)
    inquest = quarantine.died(crashed=True)
    assert (inquest.conviction is not None, inquest.life) == (True, EngineLife.NOTHING)


def test_a_search_that_never_ends_is_a_crash_loop() -> None:
    """The engine dies of everything, and no request stays long enough to be convicted."""
    quarantine = quarantine_of([])
    lives = []
    for request in range(10):
        quarantine.add(request)
        enter_all(quarantine)
        lives.append(quarantine.died(crashed=True).life)
        quarantine.remove(request)
    assert lives == [EngineLife.EVIDENCE] * 6 + [EngineLife.NOTHING] * 4
