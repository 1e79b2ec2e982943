"""Whether the server passed, criterion by criterion. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from service.drill.course import Course
from service.drill.findings import Findings, Loss
from service.drill.phase import Stage
from service.drill.sample import RUNGS


@dataclass(frozen=True, slots=True)
class Criterion:
    """One thing that must hold."""

    wanted: str
    found: str
    passed: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that must hold."""

    criteria: tuple[Criterion, ...]

    @property
    def passed(self) -> bool:
        """Whether all of it holds."""
        return all(criterion.passed for criterion in self.criteria)


def judge(course: Course, findings: Findings) -> Verdict:
    """Holds the findings of a drill against what Plimsoll promises."""
    return Verdict(
        (
            _course(course),
            *_streams(findings),
            *_memory(findings),
            *(_loss(loss) for loss in findings.losses),
        )
    )


def _course(course: Course) -> Criterion:
    missing = [stage.value for stage in Stage if course.phase(stage) is None]
    unfinished = [mark.stage.value for mark in course.phases if not mark.is_complete]
    found = "all"
    if missing:
        found = f"not begun: {', '.join(missing)}"
    elif unfinished:
        found = f"not within its limit: {', '.join(unfinished)}"
    if course.cut_short:
        found = f"{course.cut_short}; {found}"
    passed = not (missing or unfinished or course.cut_short)
    return Criterion("every phase comes to its end", found, passed)


def _streams(findings: Findings) -> Iterator[Criterion]:
    streams = findings.streams
    yield Criterion(
        "streams ran all the time",
        f"{streams.requests}, {streams.live_at_once} at once, {streams.tokens} tokens",
        streams.requests > 0 and streams.tokens > 0,
    )
    yield _none("streams dropped", streams.dropped)
    yield _none("streams without an end", streams.endless)
    yield _none("tokens lost", streams.damage.lost)
    yield _none("tokens repeated", streams.damage.repeated)
    yield _none("tokens differing", streams.damage.differing)
    yield _none("texts differing", streams.texts_differing)
    yield _none("streams with a wrong count of tokens", streams.miscounted)


def _none(what: str, count: int) -> Criterion:
    return Criterion(f"0 {what}", str(count), count == 0)


def _memory(findings: Findings) -> Iterator[Criterion]:
    precursor, pool = findings.precursor, findings.pool
    rungs = ", ".join(
        f"{count} {rung}" for rung, count in zip(RUNGS, findings.rungs, strict=True) if count
    )
    yield Criterion("memory ran out in a step", rungs or "never", any(findings.rungs))
    yield Criterion(
        "no request ended for want of memory", str(findings.rungs[-1]), findings.rungs[-1] == 0
    )
    lead = precursor.lead_seconds
    if lead is not None and precursor.first_level is not None:
        found = f"{precursor.first_level.name} {lead:.1f} s before"
    else:
        found = "no warning" if precursor.first_seconds is None else "memory never ran out"
    yield Criterion("the level rose before memory ran out", found, lead is not None and lead > 0)
    yield Criterion(
        "the KV pool gave way",
        f"{pool.before} -> {pool.lowest} blocks",
        0 < pool.lowest < pool.before,
    )
    yield Criterion(
        "the KV pool grew back",
        f"{pool.lowest} -> {pool.after} of {pool.before} blocks",
        pool.after >= pool.before > 0,
    )


def _loss(loss: Loss) -> Criterion:
    found = (
        f"no token for {loss.silence_seconds:.1f} s, all streams after "
        f"{loss.all_streams_seconds:.1f} s"
    )
    wanted = f"streams outlive it when the {loss.stage.value}"
    return Criterion(wanted, found if loss.replaced else "no engine was replaced", loss.replaced)
