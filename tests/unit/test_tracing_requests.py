"""What spans a request gets, by what its observer hears."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from front_fakes import call
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from service.api.trace_metadata import new_trace
from service.engine.figures import Incident, OomRung, PreemptionMode, PreemptionReason
from service.engine.messages import FinishReason, Preempted, Prefilled, Readmitted
from service.front.call import GenerationCall
from service.front.events import QueueFull, RequestError, Timings, Usage
from service.front.observer import Ending
from service.front.trace_context import TraceContext
from service.telemetry.tracing.observer import RequestTraces
from service.telemetry.tracing.records import SpanRecord, SpanTree

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
USAGE = Usage(prompt_tokens=3, completion_tokens=7, cached_prompt_tokens=2, recomputed_tokens=5)
TIMINGS = Timings(
    queue_seconds=1.0,
    prefill_seconds=2.0,
    time_to_first_token_seconds=3.0,
    decode_seconds=7.0,
    preempted_seconds=0.0,
    blocked_on_client_seconds=0.0,
    preemption_count=0,
)


@dataclass
class World:
    """Traces that are sent, and the time."""

    now_seconds: float = 100.0
    trees: list[SpanTree] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.traces = RequestTraces("toy", self.trees.append, clock=lambda: self.now_seconds)

    def call(self, *, is_sampled: bool = True, **options: Any) -> GenerationCall:
        trace = TraceContext(TRACE_ID, "b7ad6b7169203331", "00f067aa0ba902b7", is_sampled, "a=1")
        return call([1, 2, 3], arrival_seconds=100.0, trace=trace, **options)

    def run(self, request: GenerationCall) -> None:
        """In a batch after 1 s, first token after 3 s."""
        self.traces.admitted(request)
        self.traces.scheduled(request, 1.0)
        self.traces.prefilled(request, 0, Prefilled(1, 2, 102.0))
        self.traces.prefilled(request, 0, Prefilled(1, 1, 103.0))
        self.traces.first_token(request, 3.0, 2.0)

    def end(
        self, request: GenerationCall, error: RequestError | None = None, *, completed: bool = True
    ) -> None:
        """After 10 s."""
        ending = Ending(
            error=error,
            completed=completed and error is None,
            finish_reasons=[FinishReason.EOS if completed else None],
            usage=USAGE,
            # Nothing was sent to one that left, also of what was computed.
            timings=TIMINGS if completed else replace(TIMINGS, time_to_first_token_seconds=0.0),
            duration_seconds=10.0,
        )
        self.traces.ended(request, ending)

    @property
    def tree(self) -> SpanTree:
        (tree,) = self.trees
        return tree


def times(tree: SpanTree) -> list[tuple[str, float, float | None]]:
    return [(span.name, span.begin_seconds, span.end_seconds) for span in tree.spans]


def child(tree: SpanTree, name: str) -> SpanRecord:
    (span,) = (span for span in tree.spans if span.name == name)
    return span


def lost(mode: PreemptionMode, at_seconds: float) -> Preempted:
    return Preempted(1, mode, PreemptionReason.KV_FULL, 40, at_seconds)


def test_the_stages_follow_each_other_without_a_gap() -> None:
    world = World()
    request = world.call(max_tokens=9, priority=2, tenant="acme", candidate_count=1)
    world.run(request)
    world.end(request)
    tree = world.tree
    assert times(tree) == [
        ("text_completion toy", 100.0, 110.0),
        ("queue", 100.0, 101.0),
        ("prefill", 101.0, 103.0),
        ("decode", 103.0, 110.0),
    ]
    root, *children = tree.spans
    assert (tree.trace_id, tree.state) == (TRACE_ID, "a=1")
    assert (root.span_id, root.parent_span_id) == ("b7ad6b7169203331", "00f067aa0ba902b7")
    assert {span.parent_span_id for span in children} == {root.span_id}
    chunks = child(tree, "prefill").events
    assert [(e.name, e.at_seconds, e.attributes["plimsoll.tokens"]) for e in chunks] == [
        ("chunk", 102.0, 2),
        ("chunk", 103.0, 1),
    ]
    assert not root.error
    assert root.attributes == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "plimsoll",
        "gen_ai.request.model": "toy",
        "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 0,
        "gen_ai.request.seed": 0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.response.id": "r",
        "gen_ai.response.finish_reasons": ["eos"],
        "gen_ai.response.time_to_first_chunk": 3.0,
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "plimsoll.kv.recomputed_tokens": 5,
        "plimsoll.priority": 2,
        "plimsoll.tenant": "acme",
    }


@pytest.mark.parametrize(
    ("mode", "name"),
    [
        (PreemptionMode.TRIM, "preempted"),
        (PreemptionMode.RECOMPUTE, "preempted"),
        (PreemptionMode.SWAP, "swapped"),
    ],
)
def test_the_loss_of_blocks_lies_over_the_stages(mode: PreemptionMode, name: str) -> None:
    world = World()
    request = world.call(is_sampled=False)
    world.run(request)
    world.traces.preempted(request, 0, lost(mode, 104.0))
    world.traces.readmitted(request, 0, Readmitted(1, 30, 106.0))
    world.traces.prefilled(request, 0, Prefilled(1, 10, 107.0))
    world.end(request)
    tree = world.tree
    assert times(tree)[3:] == [("decode", 103.0, 110.0), (name, 104.0, 106.0)]
    assert child(tree, name).attributes == {
        "plimsoll.candidate": 0,
        "plimsoll.preemption.mode": mode.name.lower(),
        "plimsoll.preemption.reason": "kv_full",
        "plimsoll.preemption.lost_tokens": 40,
        "plimsoll.kv.cached_tokens": 30,
    }
    # What it had lost is computed again while it decodes.
    assert [event.at_seconds for event in child(tree, "decode").events] == [107.0]


def test_one_that_ends_while_it_waits_for_blocks_is_closed() -> None:
    world = World()
    request = world.call()
    world.run(request)
    world.traces.preempted(request, 0, lost(PreemptionMode.TRIM, 104.0))
    world.end(request, completed=False)
    assert times(world.tree)[-1] == ("preempted", 104.0, 110.0)
    assert world.tree.spans[0].attributes["plimsoll.outcome"] == "cancelled"


def test_a_resubmission_lasts_from_the_death_to_the_resumption() -> None:
    world = World()
    request = world.call(is_sampled=False)
    world.run(request)
    for candidate, death in ((0, 104.0), (1, 104.5)):
        world.now_seconds = death
        world.traces.interrupted(request, candidate)
    world.now_seconds = 106.0
    world.traces.resubmitted(request, 1)
    world.traces.resubmitted(request, 0)
    world.now_seconds = 107.0
    world.traces.resumed(request, 0)
    world.now_seconds = 108.0
    world.traces.resumed(request, 1)
    world.end(request)
    gaps = [span for span in world.tree.spans if span.name == "resubmitted"]
    assert [(g.begin_seconds, g.end_seconds) for g in gaps] == [(104.0, 107.0), (104.5, 108.0)]
    assert [g.attributes["plimsoll.candidate"] for g in gaps] == [0, 1]
    assert [[event.at_seconds for event in g.events] for g in gaps] == [[106.0], [106.0]]


def test_an_engine_that_dies_ends_the_wait_for_its_blocks() -> None:
    world = World()
    request = world.call()
    world.run(request)
    world.traces.preempted(request, 0, lost(PreemptionMode.SWAP, 104.0))
    for death in (105.0, 106.0):
        world.now_seconds = death
        world.traces.interrupted(request, 0)
    world.now_seconds = 107.0
    world.traces.resumed(request, 0)
    world.end(request)
    assert times(world.tree)[-3:] == [
        ("swapped", 104.0, 105.0),
        ("resubmitted", 105.0, 106.0),
        ("resubmitted", 106.0, 107.0),
    ]


def test_a_loss_told_before_the_resumption_leaves_nothing_open() -> None:
    """Both in one report of the engine: it came back, and was preempted in its first step."""
    world = World()
    request = world.call()
    world.run(request)
    world.now_seconds = 104.0
    world.traces.interrupted(request, 0)
    world.traces.preempted(request, 0, lost(PreemptionMode.TRIM, 105.0))
    world.traces.readmitted(request, 0, Readmitted(1, 0, 106.0))
    world.end(request)
    assert times(world.tree)[-2:] == [
        ("resubmitted", 104.0, 105.0),
        ("preempted", 105.0, 106.0),
    ]


def test_a_step_without_memory_is_an_event_of_the_request() -> None:
    world = World()
    request = world.call(is_sampled=False)
    world.run(request)
    world.now_seconds = 105.0
    incident = Incident("oom", "told", OomRung.SHRINK, 4096, [1], 64, None)
    world.traces.ran_out_of_memory(request, incident)
    world.end(request)
    (event,) = world.tree.spans[0].events
    assert (event.name, event.at_seconds) == ("out of device memory", 105.0)
    assert event.attributes == {"plimsoll.oom.rung": "shrink", "plimsoll.oom.wanted_bytes": 4096}


def test_a_refusal_is_a_whole_trace_by_itself() -> None:
    world = World(now_seconds=100.5)
    request = world.call(is_sampled=False)
    world.traces.refused(request, QueueFull(waiting=4, limit=4, retry_after_seconds=1.0))
    assert times(world.tree) == [("text_completion toy", 100.0, 100.5), ("queue", 100.0, 100.5)]
    root = world.tree.spans[0]
    assert (root.error, root.attributes["error.type"]) == ("QueueFull", "QueueFull")


def test_an_error_keeps_what_was_not_sampled_and_a_good_end_does_not() -> None:
    world = World()
    for error in (None, QueueFull(waiting=4, limit=4, retry_after_seconds=1.0)):
        request = world.call(is_sampled=False)
        world.run(request)
        world.end(request, error)
    assert world.tree.spans[0].error == "QueueFull"


def test_a_client_that_leaves_is_no_error() -> None:
    world = World()
    for is_sampled in (False, True):
        request = world.call(is_sampled=is_sampled)
        world.traces.admitted(request)
        world.end(request, completed=False)
    root = world.tree.spans[0]
    assert root.attributes["plimsoll.outcome"] == "cancelled"
    assert root.attributes["gen_ai.response.finish_reasons"] == ["none"]
    assert "gen_ai.response.time_to_first_chunk" not in root.attributes
    assert "error.type" not in root.attributes


def test_a_conversation_is_a_chat() -> None:
    world = World()
    request = world.call(is_chat=True)
    world.traces.admitted(request)
    world.end(request)
    assert world.tree.spans[0].name == "chat toy"


def test_a_seed_that_no_span_can_carry_is_left_out() -> None:
    world = World()
    for seed in (2**63 - 1, 2**63):
        request = world.call(seed=seed)
        world.traces.admitted(request)
        world.end(request)
    small, large = (tree.spans[0].attributes for tree in world.trees)
    assert small["gen_ai.request.seed"] == 2**63 - 1
    assert "gen_ai.request.seed" not in large


def test_without_a_context_there_is_no_trace() -> None:
    world = World()
    request = call([1])
    world.traces.refused(request, QueueFull(waiting=4, limit=4, retry_after_seconds=1.0))
    world.run(request)
    world.end(request)
    assert world.trees == []


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.5, 0.999, 1.0])
def test_new_traces_are_sampled_as_opentelemetry_does(ratio: float) -> None:
    sampler = TraceIdRatioBased(ratio)
    contexts = [new_trace(ratio) for _ in range(500)]
    assert len({context.trace_id for context in contexts}) == 500
    for context in contexts:
        decision = sampler.should_sample(None, int(context.trace_id, 16), "").decision
        assert context.is_sampled is (decision is Decision.RECORD_AND_SAMPLE)
        assert context.parent_span_id is None
