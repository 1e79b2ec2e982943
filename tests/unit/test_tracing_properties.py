"""Whatever happens to a request, in whatever order: its trace is whole, bounded, and its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from front_fakes import call
from hypothesis import given, settings
from hypothesis import strategies as st

from service.engine.figures import Incident, OomRung, PreemptionMode, PreemptionReason
from service.engine.messages import FinishReason, Preempted, Prefilled, Readmitted
from service.front.call import GenerationCall
from service.front.events import DeadlinePassed, RequestError, Timings, Usage
from service.front.observer import Ending
from service.front.trace_context import TraceContext
from service.telemetry.tracing.observer import RequestTraces
from service.telemetry.tracing.records import SpanTree
from service.telemetry.tracing.request_trace import MAX_EVENTS, MAX_SPANS

CANDIDATES = 3
TROUBLES = {"preempted", "interrupted", "out of memory"}
NAMES = {"queue", "prefill", "decode", "preempted", "swapped", "resubmitted"}

steps = st.tuples(
    st.sampled_from(
        (
            *("scheduled", "chunk", "chunk", "first token", "preempted", "readmitted"),
            *("interrupted", "resubmitted", "resumed", "out of memory", "tokens"),
        )
    ),
    st.integers(0, CANDIDATES - 1),
    st.floats(0.0, 50.0),  # the clock of the engine, which need not agree with ours
    st.one_of(st.just(1), st.integers(1, 300)),  # times over
)


@dataclass(frozen=True)
class Life:
    """One request."""

    number: int
    is_sampled: bool
    steps: list[tuple[str, int, float, int]]
    ending: str  # completed, cancelled, failed or refused

    @property
    def is_troubled(self) -> bool:
        if self.ending == "refused":
            return True
        return self.ending == "failed" or any(kind in TROUBLES for kind, *_ in self.steps)

    @property
    def request_id(self) -> str:
        return f"r{self.number}"

    @property
    def call(self) -> GenerationCall:
        trace = TraceContext(
            f"{self.number + 1:032x}", f"{self.number + 1:016x}", None, self.is_sampled
        )
        return call(
            [1], self.request_id, arrival_seconds=10.0, trace=trace, candidate_count=CANDIDATES
        )


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    count = draw(st.integers(1, 3))
    endings = st.sampled_from(("completed", "completed", "cancelled", "failed", "refused"))
    return [
        Life(number, draw(st.booleans()), draw(st.lists(steps, max_size=25)), draw(endings))
        for number in range(count)
    ]


@dataclass
class World:
    """Plays lives."""

    now_seconds: float = 10.0
    trees: list[SpanTree] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.traces = RequestTraces("toy", self.trees.append, clock=lambda: self.now_seconds)

    def step(self, life: Life, kind: str, candidate: int, at_seconds: float) -> None:
        traces, request = self.traces, life.call
        self.now_seconds += 0.01
        marks: dict[str, Any] = {
            "scheduled": lambda: traces.scheduled(request, at_seconds - 10.0),
            "chunk": lambda: traces.prefilled(
                request, candidate, Prefilled(life.number, life.number + 1, at_seconds)
            ),
            "first token": lambda: traces.first_token(request, at_seconds - 10.0, 0.0),
            "tokens": lambda: traces.received(request, 1, 0.1),
            "preempted": lambda: traces.preempted(
                request,
                candidate,
                Preempted(
                    life.number,
                    list(PreemptionMode)[int(at_seconds) % 3],
                    PreemptionReason.KV_FULL,
                    life.number + 1,
                    at_seconds,
                ),
            ),
            "readmitted": lambda: traces.readmitted(
                request, candidate, Readmitted(life.number, life.number + 1, at_seconds)
            ),
            "interrupted": lambda: traces.interrupted(request, candidate),
            "resubmitted": lambda: traces.resubmitted(request, candidate),
            "resumed": lambda: traces.resumed(request, candidate),
            "out of memory": lambda: traces.ran_out_of_memory(
                request, Incident("oom", "", OomRung.RETRY, life.number + 1, [1], 1, None)
            ),
        }
        marks[kind]()

    def end(self, life: Life) -> None:
        if life.ending == "refused":
            return
        error: RequestError | None = DeadlinePassed() if life.ending == "failed" else None
        ending = Ending(
            error=error,
            completed=life.ending == "completed",
            finish_reasons=[FinishReason.EOS] * CANDIDATES,
            usage=Usage(1, 1, 0, 0),
            timings=Timings(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0),
            duration_seconds=self.now_seconds - 10.0,
        )
        self.traces.ended(life.call, ending)
        # Late words of an engine about what is over change nothing.
        self.traces.preempted(
            life.call, 0, Preempted(1, PreemptionMode.TRIM, PreemptionReason.OOM, 1, 1.0)
        )


def play(together: list[Life]) -> World:
    """All at once: a step of each in turn."""
    world = World()
    for life in together:
        if life.ending == "refused":
            world.traces.refused(life.call, DeadlinePassed())
        else:
            world.traces.admitted(life.call)
    for turn in range(max(len(life.steps) for life in together)):
        for life in together:
            if turn < len(life.steps) and life.ending != "refused":
                kind, candidate, at_seconds, count = life.steps[turn]
                for _ in range(count):
                    world.step(life, kind, candidate, at_seconds)
    for life in together:
        world.end(life)
    return world


@settings(max_examples=150, deadline=None)
@given(lives())
def test_a_trace_is_kept_if_and_only_if_it_is_sampled_or_troubled(together: list[Life]) -> None:
    world = play(together)
    kept = [tree.spans[0].attributes["gen_ai.response.id"] for tree in world.trees]
    assert sorted(kept) == sorted(
        life.request_id for life in together if life.is_sampled or life.is_troubled
    )
    assert world.traces._live == {}


@settings(max_examples=150, deadline=None)
@given(lives())
def test_what_is_kept_is_a_whole_tree_in_time(together: list[Life]) -> None:
    for tree in play(together).trees:
        root, *children = tree.spans
        assert len({span.span_id for span in tree.spans}) == len(tree.spans)
        assert {span.name for span in children} <= NAMES
        assert root.end_seconds is not None
        for span in children:
            assert span.parent_span_id == root.span_id
            assert span.end_seconds is not None
            assert root.begin_seconds <= span.begin_seconds <= span.end_seconds <= root.end_seconds
        for span in tree.spans:
            assert span.end_seconds is not None
            for event in span.events:
                assert span.begin_seconds <= event.at_seconds <= span.end_seconds


@settings(max_examples=150, deadline=None)
@given(lives())
def test_spans_and_events_are_bounded_and_those_left_out_are_counted(together: list[Life]) -> None:
    by_id = {life.request_id: life for life in together}
    for tree in play(together).trees:
        root = tree.spans[0]
        life = by_id[str(root.attributes["gen_ai.response.id"])]
        told: Counter[str] = Counter()
        for kind, _, _, count in life.steps if life.ending != "refused" else []:
            told[kind] += count
        spans, left_out_spans = len(tree.spans), root.attributes.get("plimsoll.left_out.spans", 0)
        assert spans <= MAX_SPANS
        made = told["scheduled"] + told["first token"] + told["preempted"] + told["interrupted"]
        assert spans + int(left_out_spans) == 2 + made  # type: ignore[arg-type]
        assert not left_out_spans or spans == MAX_SPANS

        events = sum(len(span.events) for span in tree.spans)
        left_out_events = root.attributes.get("plimsoll.left_out.events", 0)
        assert events <= MAX_EVENTS
        told_events = told["chunk"] + told["out of memory"]
        assert told_events <= events + int(left_out_events)  # type: ignore[arg-type]
        assert events + int(left_out_events) == told_events + told["resubmitted"]  # type: ignore[arg-type]


@settings(max_examples=100, deadline=None)
@given(lives())
def test_nothing_of_one_request_is_in_the_trace_of_another(together: list[Life]) -> None:
    world = play(together)
    for tree in world.trees:
        own = int(tree.trace_id, 16)  # one more than its number, as are all its figures
        assert tree.spans[0].attributes["gen_ai.response.id"] == f"r{own - 1}"
        sources = [s.attributes for s in tree.spans[1:]]
        sources += [event.attributes for span in tree.spans for event in span.events]
        for attributes in sources:
            for name in (
                "plimsoll.tokens",
                "plimsoll.preemption.lost_tokens",
                "plimsoll.kv.cached_tokens",
                "plimsoll.oom.wanted_bytes",
            ):
                assert attributes.get(name, own) == own
