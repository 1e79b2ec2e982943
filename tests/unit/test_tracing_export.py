"""The queue before a collector: what arrives is what was put in, and trouble costs only traces."""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.trace.v1.trace_pb2 import SpanFlags
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from otlp_receiver import OtlpReceiver, attributes, free_port, otlp_receiver

from service.front.trace_context import new_span_id
from service.telemetry.tracing.attributes import SCHEMA_URL
from service.telemetry.tracing.collector import span_queue
from service.telemetry.tracing.export import MAX_QUEUED_SPANS, SpanQueue
from service.telemetry.tracing.otel import SpanMaker
from service.telemetry.tracing.records import SpanEvent, SpanRecord, SpanTree

CLOSE_SECONDS = 0.5  # where something is to be left behind
HANG_SECONDS = 120.0  # far above any bound; more is a hang


@pytest.fixture(autouse=True)
def _time_for_an_export(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slow machine is late with is no failure."""
    monkeypatch.setattr("service.telemetry.tracing.collector._EXPORT_SECONDS", 60.0)


def tree(number: int = 0, spans: int = 4, state: str = "") -> SpanTree:
    began_seconds = time.monotonic()
    root = SpanRecord(
        "text_completion toy",
        new_span_id(),
        "00f067aa0ba902b7",
        began_seconds,
        began_seconds + 4.0,
        {"gen_ai.response.id": f"r{number}", "gen_ai.response.finish_reasons": ["eos", "none"]},
        [SpanEvent("out of device memory", began_seconds + 1.0, {"plimsoll.oom.wanted_bytes": 7})],
        error="DeadlinePassed" if number % 2 else "",
    )
    children = [
        SpanRecord("decode", new_span_id(), root.span_id, began_seconds, began_seconds + 1.0)
        for _ in range(spans - 1)
    ]
    return SpanTree(f"{number + 1:032x}", state, True, [root, *children], False)


def patient_queue(endpoint: str) -> SpanQueue:
    """Nothing but a close ends an export that hangs."""
    exporter = OTLPSpanExporter(endpoint, insecure=True, timeout=600)
    return SpanQueue(exporter, SpanMaker(Resource.create(), 0.0).spans)


@contextlib.contextmanager
def queue_to(
    endpoint: str,
    make: Callable[[str], SpanQueue] = span_queue,
    close_seconds: float = HANG_SECONDS,
) -> Iterator[SpanQueue]:
    queue = make(endpoint)
    queue.start()
    try:
        yield queue
    finally:
        began = time.monotonic()
        queue.close(close_seconds)
        assert time.monotonic() - began < HANG_SECONDS


def until_asked(receiver: OtlpReceiver, exports: int = 1) -> None:
    give_up = time.monotonic() + HANG_SECONDS
    while receiver.exports < exports:
        assert time.monotonic() < give_up, "nothing was exported"
        time.sleep(0.01)


def told(queue: SpanQueue) -> int:
    figures = queue.figures
    return figures.exported + figures.dropped + figures.failed


def until_told(queue: SpanQueue, spans: int) -> None:
    """Also of the batch that was under way."""
    give_up = time.monotonic() + HANG_SECONDS
    while told(queue) < spans:
        assert time.monotonic() < give_up, queue.figures
        time.sleep(0.01)
    assert told(queue) == spans


def test_what_arrives_is_what_was_put_in() -> None:
    with otlp_receiver() as receiver:
        unix_seconds = time.time()
        with queue_to(receiver.endpoint) as queue:
            for number in range(2):
                queue.put(tree(number, state="congo=1,rojo=2"))
        assert queue.figures.exported == 8
        good, bad = (receiver.trace_of(f"r{number}") for number in range(2))
        for trace in (good, bad):
            trace.assert_whole()
            assert trace.shape == ["decode"] * 3
            assert trace.root.parent_span_id.hex() == "00f067aa0ba902b7"
            assert trace.root.kind == trace.root.SPAN_KIND_SERVER
            assert {span.trace_state for span in trace.spans} == {"congo=1,rojo=2"}
            for span in trace.spans:
                parent_is_remote = bool(span.flags & SpanFlags.SPAN_FLAGS_CONTEXT_IS_REMOTE_MASK)
                assert parent_is_remote is (span is trace.root)
            assert trace.root.end_time_unix_nano - trace.root.start_time_unix_nano == (
                pytest.approx(4e9, abs=1000)
            )
            (event,) = trace.root.events
            assert attributes(event) == {"plimsoll.oom.wanted_bytes": 7}
        assert abs(good.root.start_time_unix_nano / 1e9 - unix_seconds) < HANG_SECONDS
        assert attributes(good.root)["gen_ai.response.finish_reasons"] == ["eos", "none"]
        assert good.root.status.code == good.root.status.STATUS_CODE_UNSET
        assert bad.root.status.code == bad.root.status.STATUS_CODE_ERROR
        assert bad.root.status.message == "DeadlinePassed"
        assert attributes(receiver.resources[0])["service.name"] == "plimsoll"
        assert set(receiver.scopes) == {("plimsoll", SCHEMA_URL)}


def test_spans_travel_without_a_close() -> None:
    with otlp_receiver() as receiver, queue_to(receiver.endpoint) as queue:
        queue.put(tree())
        receiver.wait_for(4)
        until_told(queue, 4)


def test_a_slow_collector_costs_what_finds_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    # Whole batches only, however long it takes to put them in.
    monkeypatch.setattr("service.telemetry.tracing.export._LINGER_SECONDS", 3600.0)
    trees, spans = 1500, 8
    with otlp_receiver() as receiver:
        receiver.unblocked.clear()
        with queue_to(receiver.endpoint, patient_queue) as queue:
            for number in range(64):  # one batch, which gets stuck
                queue.put(tree(number, spans))
            until_asked(receiver)
            for number in range(64, trees):
                queue.put(tree(number, spans))
            assert queue.figures.dropped == (trees - 64) * spans - MAX_QUEUED_SPANS
            assert sum(len(waiting.spans) for waiting in queue._trees) == MAX_QUEUED_SPANS
            receiver.unblocked.set()
            receiver.wait_for(512 + MAX_QUEUED_SPANS)
        until_told(queue, trees * spans)
        assert queue.figures.failed == 0
        for trace in receiver.traces.values():
            assert len(trace.spans) == spans  # whole trees, or nothing


def test_a_collector_that_hangs_does_not_keep_a_server_from_its_end() -> None:
    with otlp_receiver() as receiver:
        receiver.unblocked.clear()
        with queue_to(receiver.endpoint, patient_queue, CLOSE_SECONDS) as queue:
            for number in range(400):
                queue.put(tree(number))
            until_asked(receiver)
        until_told(queue, 1600)
        assert queue.figures.exported == 0
        assert queue.figures.dropped > 0
        queue.put(tree())
        assert told(queue) == 1604  # too late, and counted
        assert receiver.spans == []


def test_one_that_refuses_loses_those_batches_and_gets_the_next() -> None:
    with otlp_receiver() as receiver:
        receiver.refusal = grpc.StatusCode.PERMISSION_DENIED
        with queue_to(receiver.endpoint) as queue:
            queue.put(tree(0))
            until_told(queue, 4)
            assert queue.figures.failed == 4
            receiver.refusal = None
            queue.put(tree(1))
            until_told(queue, 8)
        assert queue.figures.exported == 4
        assert list(receiver.traces) == [f"{2:032x}"]


@pytest.mark.parametrize("broken", [0, 1, 2])
def test_a_tree_that_cannot_be_converted_costs_itself_alone(broken: int) -> None:
    def queue_that_fails_once(endpoint: str) -> SpanQueue:
        maker = SpanMaker(Resource.create(), 0.0)

        def spans_of(one: SpanTree) -> list[ReadableSpan]:
            if one.trace_id == f"{broken + 1:032x}":
                raise ValueError("an attribute that nobody can encode")
            return maker.spans(one)

        return SpanQueue(OTLPSpanExporter(endpoint, insecure=True), spans_of)

    with otlp_receiver() as receiver:
        with queue_to(receiver.endpoint, queue_that_fails_once) as queue:
            for number in range(3):  # one batch
                queue.put(tree(number, spans=3))
            until_told(queue, 9)
            queue.put(tree(3, spans=3))
            until_told(queue, 12)
        assert (queue.figures.failed, queue.figures.exported) == (3, 9)
        arrived = {f"{number + 1:032x}" for number in range(4) if number != broken}
        assert set(receiver.traces) == arrived


def test_a_batch_of_nothing_but_broken_trees_is_not_sent() -> None:
    def queue_that_fails(endpoint: str) -> SpanQueue:
        def spans_of(_: SpanTree) -> list[ReadableSpan]:
            raise ValueError("an attribute that nobody can encode")

        return SpanQueue(OTLPSpanExporter(endpoint, insecure=True), spans_of)

    with otlp_receiver() as receiver:
        with queue_to(receiver.endpoint, queue_that_fails) as queue:
            queue.put(tree())
            until_told(queue, 4)
        assert (queue.figures.failed, receiver.exports) == (4, 0)


def test_one_that_is_away_is_found_when_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.telemetry.tracing.collector._EXPORT_SECONDS", 2.0)
    host = "127.0.0.2"  # nobody else takes the port here while it is free
    port = free_port(host)
    with queue_to(f"http://{host}:{port}") as queue:
        queue.put(tree(0))
        until_told(queue, 4)
        assert queue.figures.failed == 4
        with otlp_receiver(port, host) as receiver:
            give_up = time.monotonic() + HANG_SECONDS
            for number in itertools.count(1):  # gRPC takes its time until it looks again
                queue.put(tree(number))
                until_told(queue, 4 * number + 4)
                if queue.figures.exported:
                    break
                assert time.monotonic() < give_up, "it was not found"
            receiver.wait_for(4)


def test_a_dead_collector_costs_the_traces_and_no_time() -> None:
    with queue_to(f"http://127.0.0.1:{free_port()}", close_seconds=CLOSE_SECONDS) as queue:
        for number in range(2000):
            queue.put(tree(number))
        assert sum(len(waiting.spans) for waiting in queue._trees) <= MAX_QUEUED_SPANS
        assert queue.figures.dropped >= 8000 - MAX_QUEUED_SPANS - 512
    until_told(queue, 8000)
    assert queue.figures.exported == 0


def test_many_threads_lose_nothing() -> None:
    with otlp_receiver() as receiver:
        with queue_to(receiver.endpoint) as queue:

            def put(first: int) -> None:
                for number in range(first, first + 100):
                    queue.put(tree(number))

            threads = [threading.Thread(target=put, args=(first,)) for first in (0, 100, 200, 300)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            receiver.wait_for(1600)
        until_told(queue, 1600)
        assert {trace.request_id for trace in receiver.traces.values()} == {
            f"r{number}" for number in range(400)
        }


_SERVES = """
import asyncio, sys
from api_stack import long_request, read_all, stack

async def main(endpoint):
    settings = {"otlp_endpoint": endpoint} if endpoint else {}
    async with stack(**settings) as server:
        await read_all(server.stub.GenerateStream(long_request(tokens=3)))

asyncio.run(main(sys.argv[1]))
print("opentelemetry" in sys.modules or any(m.startswith("opentelemetry.") for m in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_traced", [False, True])
def test_opentelemetry_is_imported_by_those_who_trace_only(is_traced: bool) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}" if is_traced else ""
    result = subprocess.run(
        [sys.executable, "-c", _SERVES, endpoint],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.splitlines()[-1] == str(is_traced)
