"""Figures, timeline and verdict of drills that are written down by hand."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kvcache.pressure import PressureLevel
from service.drill.compare import Damage
from service.drill.course import Course, PhaseMark, ServerFacts
from service.drill.document import as_document
from service.drill.findings import find
from service.drill.phase import (
    BURST_FAILURES,
    QUICK,
    NothingToTakeError,
    Pace,
    Stage,
    phases,
    squeeze,
)
from service.drill.record import (
    Arrival,
    Ending,
    Reference,
    StreamRecord,
    inter_token_seconds,
    longest_silence,
)
from service.drill.report import report_lines
from service.drill.sample import Ledger, Sample
from service.drill.timeline import EventKind, timeline
from service.drill.verdict import judge
from service.faults.plan import Balloon, ExitEngine, FailAllocation, HangEngine

NORMAL, ELEVATED, HIGH, CRITICAL = PressureLevel
LEDGER = Ledger(
    total_bytes=1_000_000_000,
    free_bytes=100_000_000,
    weights_bytes=500_000_000,
    kv_bytes=300_000_000,
    activation_bytes=90_000_000,
    runtime_bytes=10_000_000,
    other_bytes=0,
    reclaimable_bytes=50_000_000,
    headroom_bytes=150_000_000,
    demand_bytes=80_000_000,
)
FACTS = ServerFacts("toy", "1", "cpu", "float32", "float32")
REFERENCE = Reference(tuple(range(40)), "a text")
# Ten seconds each.
MARKS = [PhaseMark(stage, 10.0 * n, 10.0 * (n + 1)) for n, stage in enumerate(Stage)]


def sample(seconds: float, **changes: Any) -> Sample:
    base = Sample(seconds, NORMAL, LEDGER, pool_blocks=400, held_blocks=100)
    return dataclasses.replace(base, **changes)


def good_samples() -> list[Sample]:
    """Warned at 12, out of memory at 20, regrown at 38, engines lost at 42 and 52."""
    balloon = dataclasses.replace(LEDGER, free_bytes=0, other_bytes=100_000_000)
    out = {"rungs": (3, 1, 0, 0)}
    return [
        sample(0.0),
        sample(9.9),
        sample(12.0, level=ELEVATED, ledger=balloon),
        sample(16.0, level=HIGH, pool_blocks=300, ledger=balloon),
        sample(17.0, level=HIGH, pool_blocks=250, ledger=balloon),
        sample(20.0, level=CRITICAL, pool_blocks=200, ledger=balloon, admits=False, **out),
        sample(32.0, level=ELEVATED, pool_blocks=300, **out),
        sample(38.0, pool_blocks=400, **out),
        sample(41.0, **out),
        sample(42.0, engine_restarts=1, **out),
        sample(49.0, engine_restarts=1, **out),
        sample(51.0, engine_restarts=1, **out),
        sample(52.0, engine_restarts=2, **out),
        sample(70.0, engine_restarts=2, **out),
    ]


def stream(number: int, times: list[float], **changes: Any) -> StreamRecord:
    """A stream that got the right tokens, one at each time, all others with the last."""
    arrivals = [Arrival(at, 1) for at in times[:-1]]
    arrivals.append(Arrival(times[-1], 40 - len(arrivals)))
    record = StreamRecord(
        number,
        0,
        times[0] - 0.5,
        times[-1],
        Ending.DONE,
        "max_tokens",
        arrivals,
        list(REFERENCE.token_ids),
        REFERENCE.text,
        40,
    )
    return dataclasses.replace(record, **changes)


def good_streams() -> list[StreamRecord]:
    """Two at once; nobody gets a token from 41 to 44 and from 51 to 57."""
    return [
        stream(0, [1.0, 20.0, 41.0, 44.0, 47.0]),
        stream(1, [2.0, 21.0, 40.5, 46.0, 47.0]),
        stream(2, [49.0, 51.0, 57.0, 70.0]),
    ]


def course(**changes: Any) -> Course:
    base = Course(FACTS, MARKS, good_samples(), good_streams(), [REFERENCE], 100_000_000)
    return dataclasses.replace(base, **changes)


def failures(seen: Course) -> list[str]:
    return [c.wanted for c in judge(seen, find(seen)).criteria if not c.passed]


def test_a_good_course_passes() -> None:
    assert failures(course()) == []


def test_lead_time_is_from_the_first_rise_to_the_first_rung() -> None:
    precursor = find(course()).precursor
    assert precursor.first_level is ELEVATED
    assert precursor.lead_seconds == pytest.approx(8.0)


def test_a_level_that_was_up_before_the_climb_is_no_warning() -> None:
    samples = [sample(0.0, level=ELEVATED), sample(9.0, level=ELEVATED), *good_samples()[2:]]
    precursor = find(course(samples=samples)).precursor
    assert precursor.first_level is HIGH
    assert precursor.first_seconds == 16.0


def test_a_warning_that_comes_with_the_failure_comes_too_late() -> None:
    quiet = [dataclasses.replace(s, level=NORMAL) for s in good_samples()[:5]]
    samples = [*quiet, *good_samples()[5:]]
    assert find(course(samples=samples)).precursor.lead_seconds == 0.0
    assert failures(course(samples=samples)) == ["the level rose before memory ran out"]


def test_rungs_of_earlier_drills_do_not_count() -> None:
    samples = [dataclasses.replace(s, rungs=(7, 7, 7, 7)) for s in good_samples()]
    findings = find(course(samples=samples))
    assert findings.rungs == (0, 0, 0, 0)
    assert findings.precursor.first_rung_seconds is None
    assert failures(course(samples=samples)) == [
        "memory ran out in a step",
        "the level rose before memory ran out",
    ]


def test_a_request_that_ended_for_want_of_memory_fails_the_drill() -> None:
    *others, last = good_samples()
    samples = [*others, dataclasses.replace(last, rungs=(3, 1, 0, 1))]
    assert failures(course(samples=samples)) == ["no request ended for want of memory"]


def test_the_pool_is_judged_from_the_climb_to_the_end_of_the_release() -> None:
    pool = find(course()).pool
    assert (pool.before, pool.lowest, pool.after) == (400, 200, 400)
    stuck = [
        dataclasses.replace(s, pool_blocks=399) if s.seconds > 30 else s for s in good_samples()
    ]
    assert failures(course(samples=stuck)) == ["the KV pool grew back"]
    stiff = [dataclasses.replace(s, pool_blocks=400) for s in good_samples()]
    assert failures(course(samples=stiff)) == ["the KV pool gave way"]


def test_what_others_had_before_is_no_balloon() -> None:
    had = dataclasses.replace(LEDGER, other_bytes=30_000_000)
    samples = [sample(0.0, ledger=had), *good_samples()[2:]]
    assert find(course()).balloon_bytes == 100_000_000
    assert find(course(samples=samples)).balloon_bytes == 70_000_000


def test_a_loss_is_measured_by_what_clients_got() -> None:
    exit_loss, freeze = find(course()).losses
    assert exit_loss.replaced
    assert exit_loss.silence_seconds == pytest.approx(3.0)  # 41 to 44
    assert exit_loss.all_streams_seconds == pytest.approx(5.0)  # 41 to 46
    assert freeze.silence_seconds == pytest.approx(6.0)  # 51 to 57
    assert freeze.all_streams_seconds == pytest.approx(6.0)
    unmoved = [
        dataclasses.replace(s, engine_restarts=1) if s.seconds > 42 else s for s in good_samples()
    ]
    assert failures(course(samples=unmoved)) == ["streams outlive it when the engine freezes"]


@pytest.mark.parametrize(
    ("changes", "failed"),
    [
        ({"ending": Ending.DROPPED, "token_ids": list(range(20))}, "0 streams dropped"),
        ({"ending": Ending.CANCELLED, "token_ids": list(range(20))}, "0 streams without an end"),
        ({"token_ids": [*range(10), *range(12, 40)], "reported_tokens": 38}, "0 tokens lost"),
        ({"token_ids": [*range(10), *range(9, 40)], "reported_tokens": 41}, "0 tokens repeated"),
        ({"token_ids": [*range(39), 7]}, "0 tokens differing"),
        ({"text": "a test"}, "0 texts differing"),
        ({"reported_tokens": 41}, "0 streams with a wrong count of tokens"),
    ],
)
def test_what_a_client_may_not_see(changes: dict[str, Any], failed: str) -> None:
    first, *others = good_streams()
    seen = course(streams=[dataclasses.replace(first, **changes), *others])
    assert failures(seen) == [failed]


def test_of_a_dropped_stream_only_what_came_is_compared() -> None:
    first, *others = good_streams()
    cut = dataclasses.replace(first, ending=Ending.DROPPED, token_ids=list(range(20)))
    assert find(course(streams=[cut, *others])).streams.damage == Damage()


def test_refused_requests_are_no_streams() -> None:
    refused = StreamRecord(3, 0, 30.0, 30.1, Ending.REFUSED, "QUEUE_FULL")
    findings = find(course(streams=[*good_streams(), refused])).streams
    assert (findings.requests, findings.refused, findings.live_at_once) == (3, 1, 2)
    assert findings.reasons == {"refused: QUEUE_FULL": 1}


def test_phases_that_are_missing_or_unfinished_fail() -> None:
    assert "every phase comes to its end" in failures(course(phases=MARKS[:-1]))
    late = [dataclasses.replace(MARKS[0], is_complete=False), *MARKS[1:]]
    assert failures(course(phases=late)) == ["every phase comes to its end"]
    assert failures(course(cut_short="the server is gone")) == ["every phase comes to its end"]


def test_a_drill_without_streams_or_samples_fails_and_can_be_told() -> None:
    empty = course(phases=[], samples=[], streams=[], references=[])
    verdict = judge(empty, find(empty))
    assert not verdict.passed
    assert report_lines(empty, find(empty), timeline(empty), verdict)


def test_the_timeline_tells_each_change_once_and_in_order() -> None:
    events = timeline(course())
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)
    levels = [e.text.split(":")[0] for e in events if e.kind is EventKind.LEVEL]
    assert levels == [
        "NORMAL -> ELEVATED",
        "ELEVATED -> HIGH",
        "HIGH -> CRITICAL",
        "admissions closed",
        "CRITICAL -> ELEVATED",
        "admissions open",
        "ELEVATED -> NORMAL",
    ]
    assert [e.text for e in events if e.kind is EventKind.OOM] == [
        "memory ran out in a step: retry (3 times)",
        "memory ran out in a step: shrink",
    ]
    assert [e.seconds for e in events if e.kind is EventKind.ENGINE] == [42.0, 52.0]
    assert [e.text for e in events if e.kind is EventKind.PHASE] == [s.value for s in Stage]


def test_a_move_of_the_pool_is_one_event_until_it_stands_still_or_turns() -> None:
    sizes = [(0.0, 400), (1.0, 380), (2.0, 350), (9.0, 300), (9.5, 310), (10.0, 400)]
    samples = [sample(seconds, pool_blocks=blocks) for seconds, blocks in sizes]
    moves = [e for e in timeline(course(samples=samples)) if e.kind is EventKind.POOL]
    assert [(e.seconds, e.text) for e in moves] == [
        (2.0, "KV pool shrank from 400 to 350 blocks"),
        (9.0, "KV pool shrank from 350 to 300 blocks"),
        (10.0, "KV pool grew from 300 to 400 blocks"),
    ]


def test_gaps_count_once_for_each_token_of_a_message() -> None:
    record = stream(0, [1.0])
    record.arrivals = [Arrival(1.0, 5), Arrival(2.0, 1), Arrival(4.0, 4), Arrival(9.0, 1)]
    assert inter_token_seconds([record], 0.0, 9.0).tolist() == [1.0, 0.5, 0.5, 0.5, 0.5]
    assert inter_token_seconds([record], 2.5, 100.0).tolist() == [0.5, 0.5, 0.5, 0.5, 5.0]


def test_silence_is_the_longest_time_without_any_stream() -> None:
    first, second = stream(0, [1.0, 3.0, 9.0]), stream(1, [2.0, 5.0])
    assert longest_silence([first, second], 0.0, 10.0) == (5.0, 9.0)
    assert longest_silence([first, second], 0.0, 30.0) == (9.0, 30.0)
    assert longest_silence([], 2.0, 4.0) == (2.0, 4.0)


def test_the_document_holds_everything_and_is_json() -> None:
    seen = course()
    findings = find(seen)
    document = as_document(
        started="2026-01-01T00:00:00+00:00",
        course=seen,
        findings=findings,
        events=timeline(seen),
        verdict=judge(seen, findings),
    )
    again = json.loads(json.dumps(document))
    assert again["passed"] is True
    assert again["findings"]["precursor"]["lead_seconds"] == pytest.approx(8.0)
    assert again["findings"]["rungs"] == {"retry": 3, "shrink": 1, "requeue": 0, "fail": 0}
    assert len(again["samples"]) == len(seen.samples)
    assert again["samples"][5]["level"] == "CRITICAL"
    assert again["streams"][0]["damage"] == {"lost": 0, "repeated": 0, "differing": 0}


def test_the_report_says_which_types_were_served() -> None:
    seen = course(server=dataclasses.replace(FACTS, weights_dtype="bfloat16"))
    text = "\n".join(report_lines(seen, find(seen), timeline(seen), judge(seen, find(seen))))
    assert "weights in bfloat16" in text
    assert "--dtype float32" in text
    assert "the drill passed" in text


class TestPhases:
    def test_the_balloon_takes_what_is_free_and_its_share_of_the_pool(self) -> None:
        balloon = squeeze(LEDGER, 0.5)
        assert balloon.balloon_bytes == 250_000_000
        assert balloon.share == pytest.approx(0.25)

    def test_a_device_that_is_full_is_refused(self) -> None:
        full = dataclasses.replace(LEDGER, free_bytes=0, kv_bytes=0)
        with pytest.raises(NothingToTakeError, match="0 bytes could be taken of 1000000000"):
            squeeze(full, 1.0)

    @pytest.mark.parametrize("pace", [Pace(), QUICK])
    def test_failures_come_while_the_balloon_is_up_and_end_no_request(self, pace: Pace) -> None:
        course = phases(pace, squeeze(LEDGER, 0.5))
        assert [phase.stage for phase in course] == list(Stage)
        balloon, burst, scattered = course[1].faults or ()
        assert isinstance(balloon, Balloon)
        for strike in (burst, scattered):
            assert isinstance(strike, FailAllocation)
            assert balloon.rise_seconds <= strike.after_seconds
            assert strike.after_seconds < balloon.rise_seconds + balloon.hold_seconds
        assert burst.count == BURST_FAILURES == 6  # the seventh in a row would end a request
        assert balloon.end_seconds == sum(phase.least_seconds for phase in course[1:4])

    def test_each_loss_is_ordered_in_its_phase_and_nothing_in_the_last(self) -> None:
        course = phases(Pace(), squeeze(LEDGER, 0.5))
        assert course[4].faults == (ExitEngine(),)
        assert course[5].faults == (HangEngine(),)
        assert course[6].faults == ()


def test_the_picture_is_small_and_the_same_for_the_same_drill(tmp_path: Path) -> None:
    from service.drill.plot import save_plot

    seen = course()
    for name in ("first.svg", "second.svg"):
        save_plot(seen, find(seen), tmp_path / name)
    drawn = (tmp_path / "first.svg").read_bytes()
    assert drawn == (tmp_path / "second.svg").read_bytes()
    assert b"<svg" in drawn
    assert len(drawn) < 200 * 1024
