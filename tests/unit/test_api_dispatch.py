"""The pieces of the dispatcher that need no connection."""

from __future__ import annotations

import asyncio

import pytest

from service.api.dispatch import Call, InFlight, is_identifier


def call() -> Call:
    return Call(context=None, request_id="r", arrival_seconds=0.0)


def test_callbacks_run_once_when_the_call_ends() -> None:
    subject, seen = call(), []
    subject.on_done(lambda: seen.append("a"))
    subject.on_done(lambda: seen.append("b"))
    assert (seen, subject.finished) == ([], False)
    subject.finish()
    subject.finish()
    assert (sorted(seen), subject.finished) == (["a", "b"], True)


def test_a_callback_that_comes_after_the_end_runs_at_once() -> None:
    """The client may leave while the front admits the request."""
    subject, seen = call(), []
    subject.finish()
    subject.on_done(lambda: seen.append("late"))
    assert seen == ["late"]
    subject.finish()
    assert seen == ["late"]


async def test_in_flight_waits_for_the_last() -> None:
    in_flight = InFlight()
    await in_flight.wait_empty()
    in_flight.enter()
    in_flight.enter()
    waiting = asyncio.ensure_future(in_flight.wait_empty())
    in_flight.leave()
    await asyncio.sleep(0)
    assert (len(in_flight), waiting.done()) == (1, False)
    in_flight.leave()
    await asyncio.wait_for(waiting, 60)


@pytest.mark.parametrize(
    ("value", "good"),
    [
        ("", True),
        ("a b~!", True),
        ("x" * 8, True),
        ("x" * 9, False),
        ("é", False),
        ("a\n", False),
        ("a\x7f", False),
        (b"bytes", False),
        (None, False),
    ],
)
def test_identifiers(value: object, good: bool) -> None:
    assert is_identifier(value, 8) is good
