"""However often the device has no memory for a step: outputs are those of the model alone.

Random arrivals, aborts, priorities, resizes and pools so small that preemption is the rule, while
random steps fail, also many in a row. A step that fails has written nonsense to half of its slots
(see `EngineHarness.fails_step`), and all K and V are compared after every step.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import pytest
from engine_fakes import spec_of
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from resize_harness import ResizeHarness, prompt

from service.engine.figures import OomRung
from service.engine.messages import SequenceSpec, ShrinkPolicy

pytestmark = pytest.mark.slow

RETRY, SHRINK, REQUEUE, FAIL = OomRung
CLIMB = [RETRY, RETRY, RETRY, SHRINK, SHRINK, REQUEUE]
MAX_CONTEXT_TOKENS = 60
POOL_BLOCKS = 20  # of 4 tokens: the longest context takes 15


@dataclass(frozen=True)
class Arrival:
    """One sequence, the step it comes in and, if its client gives up, the step it is aborted."""

    spec: SequenceSpec
    step: int
    abort_step: int | None


@dataclass(frozen=True)
class Story:
    """All that happens to an engine."""

    settings: dict[str, float]
    arrivals: list[Arrival]
    failures: frozenset[int]  # numbers of the steps that find no memory
    resizes: dict[int, tuple[int, ShrinkPolicy]]  # by step

    @property
    def last_step(self) -> int:
        """After which nothing comes any more."""
        return max(self.resizes.keys() | {arrival.step for arrival in self.arrivals})


@st.composite
def arrivals(draw: st.DrawFn, sequence_id: int) -> Arrival:
    stem = prompt(draw(st.integers(1, 2)), draw(st.integers(0, 16)))  # shared with others
    own = draw(st.lists(st.integers(0, 255), min_size=1, max_size=8))
    step = draw(st.integers(0, 12))
    spec = spec_of(
        sequence_id,
        prompt=stem + own,
        max_tokens=draw(st.integers(1, 35)),
        priority=draw(st.sampled_from([0, 0, 0, 1, 5])),
        arrival_seconds=float(step),
        publish_blocks=draw(st.booleans()),
    )
    abort_step = draw(st.none() | st.none() | st.integers(step, step + 30))
    return Arrival(spec, step, abort_step)


@st.composite
def stories(draw: st.DrawFn, *, longest_row: int) -> Story:
    """At most `longest_row` failures in a row."""
    bursts = draw(st.lists(st.tuples(st.integers(1, 25), st.integers(1, longest_row)), max_size=8))
    failures: set[int] = set()
    at = -1
    for gap, length in bursts:
        at += gap
        failures.update(range(at, at + length))
        at += length
    resizes = st.tuples(st.integers(15, POOL_BLOCKS + 10), st.sampled_from(ShrinkPolicy))
    count = draw(st.integers(1, 9))
    return Story(
        settings={
            "max_running_sequences": draw(st.sampled_from([1, 2, 4, 8, 8])),
            "max_step_tokens": draw(st.sampled_from([1, 2, 9, 30, 64])),
            "prefill_chunk_tokens": draw(st.integers(1, 40)),
            "max_admission_skips": draw(st.integers(0, 3)),
            "pool_wait_seconds": draw(st.sampled_from([0.0, 0.0, 5.0, 12.0])),
        },
        arrivals=[draw(arrivals(number)) for number in range(1, count + 1)],
        failures=frozenset(failures),
        resizes=draw(st.dictionaries(st.integers(0, 60), resizes, max_size=3)),
    )


def live(story: Story) -> ResizeHarness:
    """Tells the story to an engine, to its end."""
    engine = ResizeHarness(
        blocks=POOL_BLOCKS,
        max_blocks=POOL_BLOCKS + 10,
        max_context_tokens=MAX_CONTEXT_TOKENS,
        **story.settings,
    )
    engine.fails_step = story.failures.__contains__
    for step in itertools.count():
        coming = [arrival for arrival in story.arrivals if arrival.step == step]
        engine.submit(*(arrival.spec for arrival in coming))
        engine.core.abort(a.spec.sequence_id for a in story.arrivals if a.abort_step == step)
        if step in story.resizes:
            engine.resize(*story.resizes[step])
        if step > story.last_step and not (engine.core.has_work or engine.core.is_resizing):
            return engine
        assert step < 5000, "still at work"
        engine.step()
    raise AssertionError


def ends(engine: ResizeHarness) -> dict[int, str]:
    """How each sequence ended; fails if one did not, or did twice."""
    told = [
        *((end.sequence_id, end.reason.name) for r in engine.reports for end in r.finished),
        *((end.sequence_id, "refused") for r in engine.reports for end in r.refused),
        *((end.sequence_id, "exhausted") for r in engine.reports for end in r.exhausted),
    ]
    assert not any(report.failed for report in engine.reports)
    assert Counter(number for number, _ in told) == Counter(list(engine.specs))
    return dict(told)


PROFILE = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@PROFILE
@given(stories(longest_row=6))
def test_nobody_notices_that_memory_was_short_for_a_while(story: Story) -> None:
    engine = live(story)
    for sequence_id, end in ends(engine).items():
        spec = engine.specs[sequence_id]
        output, alone = engine.output(sequence_id), engine.oracle(spec)
        assert end in ("MAX_TOKENS", "CONTEXT_LENGTH", "CANCELLED")
        assert output == (alone[: len(output)] if end == "CANCELLED" else alone)
    assert engine.core.stats().blocks_held == 0
    event(f"rungs up to {max((i.rung for i in engine.incidents if i.rung), default=None)}")


@PROFILE
@given(stories(longest_row=20))
def test_one_fails_only_after_every_milder_rung(story: Story) -> None:
    engine = live(story)
    told = ends(engine)
    for sequence_id, end in told.items():
        output, alone = engine.output(sequence_id), engine.oracle(engine.specs[sequence_id])
        is_whole = end in ("MAX_TOKENS", "CONTEXT_LENGTH")
        assert output == (alone if is_whole else alone[: len(output)])
    exhausted = [number for number, end in told.items() if end == "exhausted"]
    rungs = [incident.rung for incident in engine.incidents]
    assert len(exhausted) == rungs.count(FAIL)
    for at, incident in enumerate(engine.incidents):
        if incident.rung is FAIL:
            requeued = at
            while rungs[requeued - 1] is REQUEUE:
                requeued -= 1
            assert rungs[requeued - 5 : requeued + 1] == CLIMB
            assert incident.sequence_ids == [exhausted.pop(0)]
            assert incident.step_tokens == 1
    assert engine.core.stats().blocks_held == 0


@PROFILE
@given(stories(longest_row=20))
def test_when_memory_is_back_steps_are_as_large_as_ever(story: Story) -> None:
    engine = live(story)
    engine.fails_step = lambda _: False
    for number in range(len(engine.specs) + 1, 100):
        engine.submit(spec_of(number, prompt(number, 4), max_tokens=30))
        engine.run()
        vitals = engine.core.stats().vitals
        assert vitals is not None
        if (
            vitals.step_tokens == story.settings["max_step_tokens"]
            and vitals.admits
            and engine.manager.usable_blocks == vitals.pool_ceiling_blocks
        ):
            return
    raise AssertionError(vitals)
