"""What a client may say of its trace, and what is made of it."""

from __future__ import annotations

import pytest

from service.api.trace_metadata import trace_context

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{PARENT_ID}-01"


def test_a_request_is_a_new_span_below_that_of_its_client() -> None:
    trace = trace_context([("user-agent", "x"), ("traceparent", PARENT)])
    assert trace is not None
    assert (trace.trace_id, trace.parent_span_id) == (TRACE_ID, PARENT_ID)
    assert trace.is_sampled
    assert trace.ids == {"trace_id": TRACE_ID, "span_id": trace.span_id}
    again = trace_context([("traceparent", PARENT)])
    assert again is not None
    assert len({trace.span_id, again.span_id, PARENT_ID}) == 3
    assert len(trace.span_id) == 16


@pytest.mark.parametrize(
    ("flags", "is_sampled"), [("00", False), ("01", True), ("02", False), ("03", True)]
)
def test_only_the_lowest_flag_is_the_word_of_the_client(flags: str, is_sampled: bool) -> None:
    trace = trace_context([("traceparent", f"00-{TRACE_ID}-{PARENT_ID}-{flags}")])
    assert trace is not None
    assert trace.is_sampled is is_sampled


def test_a_later_version_may_say_more() -> None:
    trace = trace_context([("traceparent", f"cc-{TRACE_ID}-{PARENT_ID}-01-what-comes")])
    assert trace is not None
    assert trace.trace_id == TRACE_ID


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        PARENT.upper(),
        PARENT + "0",
        PARENT + "-more",
        PARENT[:-1],
        PARENT.replace("-", "_"),
        "ff" + PARENT[2:],
        "cc" + PARENT[2:] + ".more",
        f"00-{'0' * 32}-{PARENT_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID[:-1]}g-{PARENT_ID}-01",
        PARENT + "\n",
        b"\x00\x01",
    ],
)
def test_what_is_malformed_is_ignored(value: str | bytes) -> None:
    assert trace_context([("traceparent", value), ("tracestate", "a=1")]) is None


def test_nobody_is_below_two_parents() -> None:
    assert trace_context([("traceparent", PARENT), ("traceparent", PARENT)]) is None
    assert trace_context([]) is None


@pytest.mark.parametrize(
    ("headers", "state"),
    [
        ([], ""),
        (["congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"], "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7"),
        (["b=2 , a=1", "t@sys=3"], "b=2,a=1,t@sys=3"),
        (["a=1,,b=2"], "a=1,b=2"),
        (["a=1,a=2"], ""),
        (["a=1,B=2"], ""),
        (["a"], ""),
        (["a=b=c"], ""),
        ([",".join(f"k{i}=1" for i in range(32))], ",".join(f"k{i}=1" for i in range(32))),
        ([",".join(f"k{i}=1" for i in range(33))], ""),
        (["a=" + "x" * 256, "b=" + "x" * 251], "a=" + "x" * 256 + ",b=" + "x" * 251),
        (["a=" + "x" * 256, "b=" + "x" * 252], ""),
    ],
)
def test_a_state_is_passed_on_or_costs_only_itself(headers: list[str], state: str) -> None:
    metadata = [("traceparent", PARENT), *(("tracestate", header) for header in headers)]
    trace = trace_context(metadata)
    assert trace is not None
    assert trace.state == state
