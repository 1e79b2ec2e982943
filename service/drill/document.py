"""A drill as a JSON document for other programs.

The form is `SCHEMA`: its number rises when a field changes its meaning or goes away. Times are
seconds since the beginning of the drill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version

from service.drill.course import Course
from service.drill.findings import Findings, Loss, Pauses, damage_of
from service.drill.record import StreamRecord
from service.drill.sample import RUNGS, Sample
from service.drill.timeline import Event
from service.drill.verdict import Verdict

SCHEMA = "plimsoll.drill/1"


def as_document(
    *,
    started: str,
    course: Course,
    findings: Findings,
    events: Sequence[Event],
    verdict: Verdict,
) -> dict[str, object]:
    """The document of one drill; `started` is the wall-clock time, ISO 8601."""
    precursor = findings.precursor
    return {
        "schema": SCHEMA,
        "plimsoll_version": version("plimsoll"),
        "started": started,
        "duration_seconds": course.duration_seconds,
        "server": asdict(course.server),
        "passed": verdict.passed,
        "cut_short": course.cut_short,
        "criteria": [asdict(criterion) for criterion in verdict.criteria],
        "timeline": [asdict(event) for event in events],
        "findings": {
            "streams": asdict(findings.streams),
            "precursor": {
                "first_seconds": precursor.first_seconds,
                "first_level": None
                if precursor.first_level is None
                else precursor.first_level.name,
                "first_rung_seconds": precursor.first_rung_seconds,
                "lead_seconds": precursor.lead_seconds,
            },
            "rungs": dict(zip(RUNGS, findings.rungs, strict=True)),
            "level_seconds": {
                level.name: seconds for level, seconds in findings.level_seconds.items()
            },
            "pool_blocks": asdict(findings.pool),
            "balloon_bytes": findings.balloon_bytes,
            "losses": [_named(loss) for loss in findings.losses],
            "time_between_tokens": [_named(pauses) for pauses in findings.pauses],
        },
        "phases": [
            {
                "name": mark.stage.value,
                "begin_seconds": mark.begin_seconds,
                "end_seconds": mark.end_seconds,
                "is_complete": mark.is_complete,
            }
            for mark in course.phases
        ],
        "samples": [_sample(sample) for sample in course.samples],
        "streams": [_stream(course, record) for record in course.streams],
    }


def _named(part: Loss | Pauses) -> dict[str, object]:
    return asdict(part) | {"stage": part.stage.value}


def _sample(sample: Sample) -> dict[str, object]:
    return asdict(sample) | {"level": sample.level.name}


def _stream(course: Course, record: StreamRecord) -> dict[str, object]:
    """Without its text and tokens: what differed is told as figures."""
    return {
        "number": record.number,
        "prompt": record.prompt,
        "began_seconds": record.began_seconds,
        "ended_seconds": record.ended_seconds,
        "ending": record.ending,
        "reason": record.reason,
        "tokens": len(record.token_ids),
        "damage": asdict(damage_of(record, course.references[record.prompt])),
        "preemptions": record.preemptions,
        "recomputed_tokens": record.recomputed_tokens,
        "arrivals": [[arrival.seconds, arrival.tokens] for arrival in record.arrivals],
    }
