"""Which log records are left out, and that what is left out is told."""

from __future__ import annotations

import logging

import pytest

from service.repeats import MAX_KINDS, WINDOW_SECONDS, RepeatFilter


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def record(
    event: str, level: int = logging.INFO, name: str = "ours", **facts: object
) -> logging.LogRecord:
    made = logging.LogRecord(name, level, "", 0, "", (), None)
    made.msg = {"event": event, **facts}  # type: ignore[assignment]  # as structlog does it
    return made


def test_repeats_are_left_out_and_the_next_minute_tells_how_many() -> None:
    clock = Clock()
    before = RepeatFilter.left_out
    repeats = RepeatFilter(2, clock)
    assert [repeats.filter(record("full", n=n)) for n in range(5)] == [True, True] + [False] * 3
    assert RepeatFilter.left_out - before == 3
    assert repeats.filter(record("other"))
    assert repeats.filter(record("full", name="theirs"))
    assert repeats.filter(record("full", logging.WARNING))
    clock.seconds += WINDOW_SECONDS
    late, later = record("full"), record("full")
    assert repeats.filter(late)
    assert repeats.filter(later)
    assert late.msg == {"event": "full", "suppressed": 3}
    assert later.msg == {"event": "full"}
    assert not repeats.filter(record("full"))


def test_ends_of_requests_and_new_facts_of_errors_are_written() -> None:
    repeats = RepeatFilter(1, Clock())
    assert all(repeats.filter(record("request ended")) for _ in range(5))
    assert all(repeats.filter(record("broke", logging.ERROR, cause=n)) for n in range(5))
    assert not repeats.filter(record("broke", logging.ERROR, cause=1, timestamp="later"))


def test_records_of_other_libraries() -> None:
    clock = Clock()
    repeats = RepeatFilter(1, clock)

    def theirs() -> logging.LogRecord:
        return logging.LogRecord("grpc", logging.WARNING, "", 0, "lost %s", ("x",), None)

    assert [repeats.filter(theirs()) for _ in range(3)] == [True, False, False]
    clock.seconds += WINDOW_SECONDS
    late = theirs()
    assert repeats.filter(late)
    assert late.getMessage() == "lost x (suppressed: 2)"


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("it has no words")


@pytest.mark.parametrize(
    ("message", "arguments"),
    [("retry in %d s", ("soon",)), ("lost", ("x",)), ("%s", (Unprintable(),)), (Unprintable(), ())],
)
def test_a_record_that_cannot_be_formatted_is_as_good_as_any(
    message: object, arguments: tuple[object, ...]
) -> None:
    clock = Clock()
    repeats = RepeatFilter(1, clock)

    def theirs() -> logging.LogRecord:
        return logging.LogRecord("grpc", logging.WARNING, "", 0, message, arguments, None)

    assert RepeatFilter(0, clock).filter(theirs())
    assert [repeats.filter(theirs()) for _ in range(3)] == [True, False, False]
    clock.seconds += WINDOW_SECONDS
    late = theirs()
    assert repeats.filter(late)
    assert late.getMessage().endswith(" (suppressed: 2)")


def test_no_limit_and_a_bounded_table() -> None:
    unlimited = RepeatFilter(0, Clock())
    assert all(unlimited.filter(record("x")) for _ in range(5))
    clock = Clock()
    repeats = RepeatFilter(1, clock)
    for n in range(MAX_KINDS):
        assert repeats.filter(record(str(n)))
    assert repeats.filter(record("no place"))
    assert repeats.filter(record("no place"))
    clock.seconds += WINDOW_SECONDS
    assert repeats.filter(record("no place"))
    assert not repeats.filter(record("no place"))


def test_what_is_owed_is_told_however_late() -> None:
    clock = Clock()
    repeats = RepeatFilter(1, clock)
    assert [repeats.filter(record("full")) for _ in range(3)] == [True, False, False]
    clock.seconds += 10 * WINDOW_SECONDS
    assert repeats.filter(record("other"))  # forgets the kinds that owe nothing
    late = record("full")
    assert repeats.filter(late)
    assert late.msg == {"event": "full", "suppressed": 2}
