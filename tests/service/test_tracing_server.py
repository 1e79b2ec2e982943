"""Traces of a whole server, from the metadata of its clients to a collector."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import grpc
import pytest
from api_fakes import refused
from api_stack import Stack, long_request, read_all, stack
from metrics_page import scrape
from otlp_receiver import Trace, attributes, free_port, otlp_receiver

from service.api.gen.plimsoll.v1 import inference_pb2 as pb
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub
from service.telemetry.catalog import METRICS, requests

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
MANY = 200


@pytest.fixture(autouse=True)
def _all_arrives(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops drops what the collector does not take soon: here it has time."""
    if "trouble" not in request.fixturenames:
        monkeypatch.setattr("service.telemetry.tracing.traces._CLOSE_SECONDS", 120.0)
        monkeypatch.setattr("service.telemetry.tracing.collector._EXPORT_SECONDS", 120.0)


def parent(number: int = 0, *, is_sampled: bool = True) -> tuple[str, str]:
    """The header of a client; the trace id ends with the number."""
    return ("traceparent", f"00-{TRACE_ID[:-8]}{number:08x}-{PARENT_ID}-{int(is_sampled):02x}")


def request(text: str, request_id: str, tokens: int) -> pb.GenerateStreamRequest:
    asked = long_request(request_id, tokens)
    asked.text = text
    return asked


async def ask(server: Stack, asked: pb.GenerateStreamRequest, *metadata: tuple[str, str]) -> str:
    """The whole text."""
    answers: list[Any] = await read_all(server.stub.GenerateStream(asked, metadata=metadata))
    return "".join(delta.text for answer in answers for delta in answer.deltas.deltas)


def chunk_tokens(trace: Trace) -> int:
    """Computed for its first token."""
    events = trace.only("prefill").events
    return sum(attributes(event)["plimsoll.tokens"] for event in events)


async def test_a_request_lies_below_the_span_of_its_client() -> None:
    prompt = "CANARY-of-the-prompt " * 50
    with otlp_receiver() as receiver:
        async with stack(otlp_endpoint=receiver.endpoint, trace_ratio=0.0) as server:
            text = await ask(
                server,
                request(prompt, "client", 40),
                parent(7),
                ("tracestate", "congo=t61rcWkgMzE"),
                ("x-tenant-id", "acme"),
            )
            await ask(server, request("y", "client's no", 4), parent(8, is_sampled=False))
            await ask(server, request("z", "ratio's no", 4))
        # All that a collector is told; the stop of the server has flushed it.
        (trace,) = receiver.traces.values()
        trace.assert_whole()
        assert trace.root.trace_id.hex() == f"{TRACE_ID[:-8]}{7:08x}"
        assert trace.root.parent_span_id.hex() == PARENT_ID
        assert trace.root.trace_state == "congo=t61rcWkgMzE"
        assert trace.shape == ["queue", "prefill", "decode"]
        assert chunk_tokens(trace) == len(prompt)
        assert len(trace.only("prefill").events) > 1, "the prompt should take several steps"
        figures = attributes(trace.root)
        assert figures["gen_ai.response.id"] == "client"
        assert figures["gen_ai.usage.input_tokens"] == len(prompt)
        assert figures["gen_ai.usage.output_tokens"] == figures["gen_ai.request.max_tokens"] == 40
        assert figures["plimsoll.tenant"] == "acme"
        # Neither prompt nor output, nor a piece of them.
        assert len(text) == 40
        assert b"CANARY" not in receiver.raw
        assert not any(text[at : at + 5].encode() in receiver.raw for at in range(36))


async def test_requests_without_a_parent_begin_a_trace_of_their_own() -> None:
    with otlp_receiver() as receiver:
        async with stack(otlp_endpoint=receiver.endpoint, trace_ratio=1.0) as server:
            for number in range(3):
                await ask(server, request("hello", f"r{number}", 3))
            await ask(server, request("hello", "client's no", 3), parent(is_sampled=False))
            await asyncio.to_thread(receiver.wait_for, 12)
            page = await scrape(server.metrics_address)
            spans = METRICS["plimsoll_trace_spans_total"]
            assert page.value(spans, result="exported") == 12
            assert page.total(spans) == 12
        assert {t.request_id for t in receiver.traces.values()} == {"r0", "r1", "r2"}
        for trace in receiver.traces.values():
            trace.assert_whole()
            assert trace.root.parent_span_id == b""


async def test_preempted_requests_are_sent_with_what_they_lost() -> None:
    with otlp_receiver() as receiver:
        async with stack(
            kv_blocks=40, otlp_endpoint=receiver.endpoint, trace_ratio=0.0, max_waiting_requests=99
        ) as server:
            await asyncio.gather(
                *(ask(server, request(f"{n} says", f"r{n}", 300)) for n in range(6))
            )
        assert receiver.traces, "nobody was preempted"
        lost_tokens = 0
        for trace in receiver.traces.values():
            trace.assert_whole()
            gaps = trace.named("preempted") + trace.named("swapped")
            assert gaps
            gaps.sort(key=lambda span: span.start_time_unix_nano)
            for gap in gaps:
                figures = attributes(gap)
                assert figures["plimsoll.preemption.reason"] in ("kv_full", "pool_shrunk")
                lost_tokens += figures["plimsoll.preemption.lost_tokens"]
                assert "plimsoll.kv.cached_tokens" in figures  # it came back
            for first, second in itertools.pairwise(gaps):
                assert first.end_time_unix_nano <= second.start_time_unix_nano
        assert lost_tokens > 0


async def test_a_client_that_disconnects_and_one_that_is_late() -> None:
    with otlp_receiver() as receiver:
        async with stack(otlp_endpoint=receiver.endpoint, trace_ratio=0.0) as server:
            async with grpc.aio.insecure_channel(server.address) as channel:
                call = InferenceServiceStub(channel).GenerateStream(
                    request("hello", "gone", 4000), metadata=[parent(1)]
                )
                while not (await call.read()).HasField("deltas"):
                    pass
            await asyncio.wait_for(server.settled(), 120)  # an idle engine takes everybody
            late = server.stub.GenerateStream(request("hello", "late", 4000), timeout=0.3)
            assert (await refused(read_all(late))).code is grpc.StatusCode.DEADLINE_EXCEEDED
            await asyncio.wait_for(server.settled(), 30)
        gone = receiver.trace_of("gone")
        gone.assert_whole()
        assert gone.shape == ["queue", "prefill", "decode"]
        assert attributes(gone.root)["plimsoll.outcome"] == "cancelled"
        assert gone.root.status.code == gone.root.status.STATUS_CODE_UNSET


@pytest.mark.slow
async def test_two_hundred_at_once_have_nothing_of_each_other() -> None:
    """Each has a length, an output, a tenant and a trace id of its own."""
    with otlp_receiver() as receiver:
        async with stack(
            kv_blocks=60, otlp_endpoint=receiver.endpoint, trace_ratio=0.0, max_waiting_requests=300
        ) as server:

            async def one(number: int) -> None:
                prompt = f"{number:03}" * 6 + "x" * number
                await ask(
                    server,
                    request(prompt, f"r{number}", number % 100 + 1),
                    parent(number),
                    ("x-tenant-id", f"t{number}"),
                )

            await asyncio.gather(*map(one, range(MANY)))
        assert len(receiver.traces) == MANY
        undisturbed = 0
        for trace_id, trace in receiver.traces.items():
            number = int(trace_id[-8:], 16)
            trace.assert_whole()
            figures = attributes(trace.root)
            assert figures["gen_ai.response.id"] == f"r{number}"
            assert figures["plimsoll.tenant"] == f"t{number}"
            assert figures["gen_ai.usage.input_tokens"] == 18 + number
            assert figures["gen_ai.usage.output_tokens"] == number % 100 + 1
            assert trace.shape[:2] == ["queue", "prefill"]
            assert set(trace.shape[2:]) <= {"decode", "preempted", "swapped"}
            if "preempted" not in trace.shape:
                undisturbed += 1
                cached_tokens = figures["gen_ai.usage.cache_read.input_tokens"]
                assert chunk_tokens(trace) == 18 + number - cached_tokens
        assert 0 < undisturbed < MANY, "some should be preempted, and some not"


@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["away", "refuses", "hangs"])
async def test_trouble_with_a_collector_costs_traces_and_nothing_else(trouble: str) -> None:
    with otlp_receiver() as receiver:
        endpoint = receiver.endpoint
        if trouble == "away":
            endpoint = f"http://127.0.0.1:{free_port()}"
        elif trouble == "refuses":
            receiver.refusal = grpc.StatusCode.RESOURCE_EXHAUSTED
        else:
            receiver.unblocked.clear()
        async with stack(
            otlp_endpoint=endpoint, trace_ratio=1.0, max_waiting_requests=300
        ) as server:
            for turn in range(2):
                await asyncio.gather(
                    *(ask(server, request(f"{n}", f"{turn}/{n}", 8)) for n in range(50))
                )
                await asyncio.sleep(1.2)  # what waited is on its way, or was
            page = await scrape(server.metrics_address)
            assert page.value(requests.FINISHED, outcome="completed") == 100
            spans = METRICS["plimsoll_trace_spans_total"]
            assert page.value(spans, result="exported") == 0
            assert page.value(spans, result="dropped") == 0, "there is room for these"
            server.signals.signalled()
            await asyncio.wait_for(asyncio.shield(server.task), 60)
        assert receiver.spans == []
