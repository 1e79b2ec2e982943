"""The samples of a drill as a list of what happened. Pure."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from service.drill.course import Course
from service.drill.sample import RUNGS, Sample

# A pool that stood still for so long has come to the end of one move.
_MOVE_SECONDS = 1.5


class EventKind(enum.StrEnum):
    """What an event is about."""

    PHASE = "phase"
    LEVEL = "level"
    OOM = "oom"
    POOL = "pool"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the timeline."""

    seconds: float  # since the beginning of the drill
    kind: EventKind
    text: str


def timeline(course: Course) -> list[Event]:
    """All events in order of time."""
    events = [
        Event(mark.begin_seconds, EventKind.PHASE, mark.stage.value) for mark in course.phases
    ]
    for before, after in itertools.pairwise(course.samples):
        events.extend(_changes(before, after))
    events.extend(_pool_moves(course.samples))
    return sorted(events, key=lambda event: event.seconds)


def _changes(before: Sample, after: Sample) -> Iterator[Event]:
    if after.level is not before.level:
        text = f"{before.level.name} -> {after.level.name}"
        yield Event(after.seconds, EventKind.LEVEL, f"{text}{_why(after)}")
    for rung, was, now in zip(RUNGS, before.rungs, after.rungs, strict=True):
        if now > was:
            times = "" if now - was == 1 else f" ({now - was} times)"
            yield Event(after.seconds, EventKind.OOM, f"memory ran out in a step: {rung}{times}")
    if after.engine_restarts > before.engine_restarts:
        yield Event(after.seconds, EventKind.ENGINE, "the engine is lost, another one is started")
    if after.admits is not before.admits:
        text = "admissions open" if after.admits else "admissions closed"
        yield Event(after.seconds, EventKind.LEVEL, text)


def _why(sample: Sample) -> str:
    ledger = sample.ledger
    if ledger is None or ledger.demand_bytes == 0:  # there is no engine
        return ""
    return (
        f": headroom {ledger.headroom_bytes / 1e6:.0f} MB for a step of "
        f"{ledger.demand_bytes / 1e6:.0f} MB, {sample.held_blocks} of {sample.pool_blocks}"
        " blocks held"
    )


def _pool_moves(samples: Sequence[Sample]) -> Iterator[Event]:
    """Each rise and fall of the pool as one event, at its end."""
    told = [sample for sample in samples if sample.pool_blocks > 0]
    if not told:
        return
    start = last = told[0]  # of the present move
    for sample in told[1:]:
        change = sample.pool_blocks - last.pool_blocks
        if change == 0:
            continue
        way = last.pool_blocks - start.pool_blocks
        turned = change * way < 0
        if way and (turned or sample.seconds - last.seconds > _MOVE_SECONDS):
            yield _move(start, last)
            start = last
        last = sample
    if last.pool_blocks != start.pool_blocks:
        yield _move(start, last)


def _move(start: Sample, last: Sample) -> Event:
    verb = "shrank" if last.pool_blocks < start.pool_blocks else "grew"
    return Event(
        last.seconds,
        EventKind.POOL,
        f"KV pool {verb} from {start.pool_blocks} to {last.pool_blocks} blocks",
    )
