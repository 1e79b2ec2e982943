"""What a drill found out: figures of its samples and streams. Pure."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvcache.pressure import PressureLevel
from service.drill.compare import Damage, compare
from service.drill.course import Course, PhaseMark
from service.drill.phase import LOSSES, Stage
from service.drill.record import (
    Ending,
    Reference,
    StreamRecord,
    inter_token_seconds,
    longest_silence,
)
from service.drill.sample import RUNGS, Sample


@dataclass(frozen=True, slots=True)
class StreamFindings:
    """What clients got."""

    requests: int
    live_at_once: int
    dropped: int
    endless: int  # cut off by the drill, since they came to no end
    refused: int
    reasons: dict[str, int]  # of dropped and refused ones
    tokens: int
    damage: Damage
    damaged: int  # streams
    texts_differing: int  # of streams whose tokens are right
    miscounted: int  # streams that got another number of tokens than the server counts
    preempted: int  # streams
    recomputed_tokens: int


@dataclass(frozen=True, slots=True)
class Precursor:
    """How the danger was seen before memory ran out. Times as everywhere in the drill."""

    level: PressureLevel  # before the climb
    first_seconds: float | None  # the level rose above that; None: it never did
    first_level: PressureLevel | None
    first_rung_seconds: float | None  # memory ran out; None: it never did

    @property
    def lead_seconds(self) -> float | None:
        """From the first sign to the first failure; None: one of the two is missing."""
        if self.first_seconds is None or self.first_rung_seconds is None:
            return None
        return self.first_rung_seconds - self.first_seconds


@dataclass(frozen=True, slots=True)
class PoolFindings:
    """Usable blocks of the KV pool."""

    before: int
    lowest: int
    after: int  # at the end of the release


@dataclass(frozen=True, slots=True)
class Loss:
    """An engine that was lost on purpose."""

    stage: Stage
    replaced: bool
    silence_seconds: float  # without a token for any client; a freeze includes its discovery
    all_streams_seconds: float  # until the last of those that waited had one


@dataclass(frozen=True, slots=True)
class Pauses:
    """Time between tokens of a stream in one phase."""

    stage: Stage
    tokens: int
    median_seconds: float
    p99_seconds: float
    longest_seconds: float


@dataclass(frozen=True, slots=True)
class Findings:
    """All figures of one drill."""

    streams: StreamFindings
    precursor: Precursor
    rungs: tuple[int, ...]  # in order of `RUNGS`
    level_seconds: dict[PressureLevel, float]
    pool: PoolFindings
    balloon_bytes: int  # the most that others had beyond what they had before
    losses: tuple[Loss, ...]
    pauses: tuple[Pauses, ...]


def find(course: Course) -> Findings:
    """Reads the figures off a drill."""
    samples = course.samples
    return Findings(
        streams=_streams(course),
        precursor=_precursor(course),
        rungs=rungs_since(samples, samples[0]) if samples else (0,) * len(RUNGS),
        level_seconds=_level_seconds(samples),
        pool=_pool(course),
        balloon_bytes=_balloon_bytes(samples),
        losses=tuple(_loss(course, mark) for mark in course.phases if mark.stage in LOSSES),
        pauses=tuple(_pauses(course, mark) for mark in course.phases),
    )


def rungs_since(samples: Sequence[Sample], begin: Sample) -> tuple[int, ...]:
    """How often each rung was taken from `begin` to the last sample."""
    return tuple(
        after - before for after, before in zip(samples[-1].rungs, begin.rungs, strict=True)
    )


def damage_of(record: StreamRecord, reference: Reference) -> Damage:
    """Of a stream that was cut off, only what came before is compared."""
    expected = reference.token_ids
    if record.ending is not Ending.DONE:
        expected = expected[: len(record.token_ids)]
    return compare(expected, record.token_ids)


def _streams(course: Course) -> StreamFindings:
    asked = [record for record in course.streams if record.ending is not Ending.REFUSED]
    damages = {r.number: damage_of(r, course.references[r.prompt]) for r in asked}
    done = [record for record in asked if record.ending is Ending.DONE]
    return StreamFindings(
        requests=len(asked),
        live_at_once=_live_at_once(asked),
        dropped=sum(record.ending is Ending.DROPPED for record in asked),
        endless=sum(record.ending is Ending.CANCELLED for record in asked),
        refused=len(course.streams) - len(asked),
        reasons=dict(
            Counter(
                f"{record.ending}: {record.reason}"
                for record in course.streams
                if record.ending in (Ending.DROPPED, Ending.REFUSED)
            ).most_common()
        ),
        tokens=sum(len(record.token_ids) for record in asked),
        damage=sum(damages.values(), Damage()),
        damaged=sum(map(bool, damages.values())),
        texts_differing=sum(
            not damages[r.number] and r.text != course.references[r.prompt].text for r in done
        ),
        miscounted=sum(
            r.reported_tokens is not None and r.reported_tokens != len(r.token_ids) for r in done
        ),
        preempted=sum(record.preemptions > 0 for record in asked),
        recomputed_tokens=sum(record.recomputed_tokens for record in asked),
    )


def _live_at_once(records: Sequence[StreamRecord]) -> int:
    changes = [(record.began_seconds, 1) for record in records]
    changes += [(r.ended_seconds, -1) for r in records if r.ended_seconds is not None]
    live = most = 0
    for _, change in sorted(changes):
        live += change
        most = max(most, live)
    return most


def _precursor(course: Course) -> Precursor:
    climb = course.phase(Stage.CLIMB)
    begin_seconds = course.duration_seconds if climb is None else climb.begin_seconds
    before = [s for s in course.samples if s.seconds < begin_seconds]
    after = [s for s in course.samples if s.seconds >= begin_seconds]
    level = before[-1].level if before else PressureLevel.NORMAL
    first = next((s for s in after if s.level > level), None)
    known = sum(before[-1].rungs) if before else 0
    rung = next((s for s in after if sum(s.rungs) > known), None)
    return Precursor(
        level=level,
        first_seconds=None if first is None else first.seconds,
        first_level=None if first is None else first.level,
        first_rung_seconds=None if rung is None else rung.seconds,
    )


def _level_seconds(samples: Sequence[Sample]) -> dict[PressureLevel, float]:
    seconds = dict.fromkeys(PressureLevel, 0.0)
    for sample, following in itertools.pairwise(samples):
        seconds[sample.level] += following.seconds - sample.seconds
    return seconds


def _pool(course: Course) -> PoolFindings:
    climb, release = course.phase(Stage.CLIMB), course.phase(Stage.RELEASE)
    told = [s for s in course.samples if s.pool_blocks > 0]
    before = [s for s in told if climb is None or s.seconds <= climb.begin_seconds]
    during = [
        s.pool_blocks
        for s in told
        if climb is not None
        and s.seconds >= climb.begin_seconds
        and (release is None or s.seconds <= release.end_seconds)
    ]
    start = before[-1].pool_blocks if before else 0
    return PoolFindings(
        before=start,
        lowest=min(during, default=start),
        after=during[-1] if release is not None and during else 0,
    )


def _balloon_bytes(samples: Sequence[Sample]) -> int:
    others = [sample.ledger.other_bytes for sample in samples if sample.ledger is not None]
    return max(others, default=0) - (others[0] if others else 0)


def _loss(course: Course, mark: PhaseMark) -> Loss:
    begin, end = mark.begin_seconds, mark.end_seconds
    during = [s for s in course.samples if begin <= s.seconds <= end]
    replaced = bool(during) and during[-1].engine_restarts > during[0].engine_restarts
    stopped, resumed = longest_silence(course.streams, begin, end)
    waiting = [r for r in course.streams if r.is_live_in(stopped, stopped)]
    back = [
        next((a.seconds for a in record.arrivals if a.seconds > stopped), record.ended_seconds)
        for record in waiting
    ]
    last = max((seconds for seconds in back if seconds is not None), default=resumed)
    return Loss(mark.stage, replaced, resumed - stopped, last - stopped)


def _pauses(course: Course, mark: PhaseMark) -> Pauses:
    gaps = inter_token_seconds(course.streams, mark.begin_seconds, mark.end_seconds)
    if gaps.size == 0:
        return Pauses(mark.stage, 0, 0.0, 0.0, 0.0)
    median, p99 = np.percentile(gaps, (50, 99)).tolist()
    return Pauses(mark.stage, gaps.size, median, p99, float(gaps.max()))
