"""Traces of a front over scripted engines, as they arrive at a collector."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from engine_deaths import kill_engine, until_running_again
from front_fakes import (
    Brake,
    call,
    collect,
    count_prompt,
    counted_text,
    eventually,
    let_time_pass,
    running_front,
    say,
)
from otlp_receiver import OtlpReceiver, Trace, attributes, otlp_receiver
from scripted_engine import CRASH, EXHAUST, FAIL, HOLD, REFUSE, WAIT

from service.api.trace_metadata import new_trace
from service.config import ServeSettings
from service.front.call import GenerationCall
from service.front.events import QueueFull, RequestError, Started
from service.front.front import Front
from service.front.observer import RequestObserver
from service.telemetry.tracing.traces import Traces


@pytest.fixture(autouse=True)
def _all_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that stops drops what the collector does not take soon; here that is no matter."""
    monkeypatch.setattr("service.telemetry.tracing.traces._CLOSE_SECONDS", 120.0)
    monkeypatch.setattr("service.telemetry.tracing.collector._EXPORT_SECONDS", 120.0)


@contextlib.asynccontextmanager
async def traced_front(
    folder: Path, *engine_options: str, **settings: Any
) -> AsyncIterator[tuple[Front, OtlpReceiver, Traces]]:
    """What is to be sent has arrived when `stop` of the traces returns."""
    with otlp_receiver() as receiver:
        async with running_front(folder, *engine_options, **settings) as (front, _):
            traces = Traces(front, ServeSettings(otlp_endpoint=receiver.endpoint))
            traces.start()
            yield front, receiver, traces


def traced(
    prompt: list[int], request_id: str, *, is_sampled: bool = False, **options: Any
) -> GenerationCall:
    """Not sampled: what arrives is troubled."""
    trace = new_trace(float(is_sampled))
    return call(prompt, request_id, trace=trace, arrival_seconds=time.monotonic(), **options)


def only(receiver: OtlpReceiver) -> Trace:
    (trace,) = receiver.traces.values()
    trace.assert_whole()
    return trace


async def test_stages_of_a_request_follow_each_other(tmp_path: Path) -> None:
    async with traced_front(tmp_path) as (front, receiver, traces):
        asked = traced(say("hello"), "r1", is_sampled=True, tenant="acme")
        result = await collect(await front.generate(asked))
        await collect(await front.generate(traced(say("hello"), "r2")))
        await traces.stop()
        trace = only(receiver)
        assert asked.trace is not None
        assert trace.root.trace_id.hex() == asked.trace.trace_id
        assert trace.root.span_id.hex() == asked.trace.span_id
        assert trace.root.parent_span_id == b""
        assert trace.shape == ["queue", "prefill", "decode"]
        queue, prefill, decode = (trace.only(name) for name in trace.shape)
        assert queue.start_time_unix_nano == trace.root.start_time_unix_nano
        assert queue.end_time_unix_nano == prefill.start_time_unix_nano
        assert prefill.end_time_unix_nano == decode.start_time_unix_nano
        assert decode.end_time_unix_nano == trace.root.end_time_unix_nano
        figures = attributes(trace.root)
        assert result.ended is not None
        timings, usage = result.ended.timings, result.ended.usage
        # The trace and the answer to the client tell the same times.
        nanoseconds = queue.end_time_unix_nano - queue.start_time_unix_nano
        assert nanoseconds / 1e9 == pytest.approx(timings.queue_seconds, abs=1e-6)
        assert figures["gen_ai.response.time_to_first_chunk"] == timings.time_to_first_token_seconds
        nanoseconds = prefill.end_time_unix_nano - prefill.start_time_unix_nano
        assert nanoseconds / 1e9 == pytest.approx(timings.prefill_seconds, abs=1e-6)
        assert figures["gen_ai.usage.output_tokens"] == usage.completion_tokens
        assert figures["plimsoll.tenant"] == "acme"
        assert traces.figures.exported == 4


async def test_all_candidates_outlive_an_engine_in_one_trace(tmp_path: Path) -> None:
    brake = Brake(tmp_path, 100)
    async with traced_front(tmp_path, *brake.options) as (front, receiver, traces):
        asked = traced(count_prompt(), "r", candidate_count=3, seed=1, max_tokens=300)
        handle = await front.generate(asked)
        bystander = await front.generate(traced([WAIT], "waits"))
        await handle.next()
        await handle.next()
        await until_running_again(front, kill_engine(front))
        brake.let_go()
        result = await collect_more(handle)
        assert result[0] == counted_text(1, 300)[-len(result[0]) :]
        bystander.close()
        await traces.stop()
        trace = only(receiver)  # who had not begun lost nothing
        assert trace.request_id == "r"
        gaps = trace.named("resubmitted")
        assert sorted(attributes(gap)["plimsoll.candidate"] for gap in gaps) == [0, 1, 2]
        decode = trace.only("decode")
        for gap in gaps:
            assert [event.name for event in gap.events] == ["sent to a new engine"]
            assert decode.start_time_unix_nano <= gap.start_time_unix_nano
            assert gap.start_time_unix_nano < gap.end_time_unix_nano < decode.end_time_unix_nano
        assert attributes(trace.root)["gen_ai.response.finish_reasons"] == ["max_tokens"] * 3
        assert trace.root.status.code == trace.root.status.STATUS_CODE_UNSET


async def collect_more(handle: Any) -> dict[int, str]:
    texts: dict[int, str] = {}
    async for event in handle:
        for delta in getattr(event, "deltas", ()):
            texts[delta.index] = texts.get(delta.index, "") + delta.text
    handle.close()
    return texts


class Resumptions(RequestObserver):
    """Counts them."""

    count = 0

    def resumed(self, call: GenerationCall, candidate: int) -> None:  # noqa: ARG002
        self.count += 1


async def test_two_deaths_are_two_spans(tmp_path: Path) -> None:
    async with traced_front(tmp_path) as (front, receiver, traces):
        resumptions = Resumptions()
        front.observe(resumptions)
        handle = await front.generate(traced([HOLD], "r"))
        await handle.next()
        for deaths in (1, 2):
            await until_running_again(front, kill_engine(front))
            await eventually(lambda deaths=deaths: resumptions.count == deaths)  # type: ignore[misc]
        handle.close()
        await eventually_idle(front)
        await traces.stop()
        trace = only(receiver)
        assert trace.shape == ["queue", "prefill", "resubmitted", "resubmitted"]
        first, second = trace.named("resubmitted")
        assert first.end_time_unix_nano <= second.start_time_unix_nano
        assert attributes(trace.root)["plimsoll.outcome"] == "cancelled"


async def eventually_idle(front: Front) -> None:
    await eventually(lambda: front.stats().live_requests == 0)


async def test_a_cancelled_request_is_sent_if_it_was_sampled(tmp_path: Path) -> None:
    async with traced_front(tmp_path) as (front, receiver, traces):
        for is_sampled in (True, False):
            handle = await front.generate(
                traced(count_prompt(), f"r{is_sampled}", is_sampled=is_sampled, max_tokens=4000)
            )
            await handle.next()
            await handle.next()
            handle.close()
        await eventually_idle(front)
        await traces.stop()
        trace = only(receiver)
        assert trace.request_id == "rTrue"
        assert attributes(trace.root)["plimsoll.outcome"] == "cancelled"
        assert attributes(trace.root)["gen_ai.response.finish_reasons"] == ["none"]
        assert trace.shape == ["queue", "prefill", "decode"]
        assert trace.only("decode").end_time_unix_nano == trace.root.end_time_unix_nano


@pytest.mark.parametrize(
    ("prompt", "error", "shape"),
    [
        ([REFUSE], "ExceedsCapacity", ["queue"]),
        ([FAIL], "ModelFailed", ["queue", "prefill"]),
        ([EXHAUST], "DeviceExhausted", ["queue", "prefill"]),
        ([WAIT], "DeadlinePassed", ["queue"]),
        ([HOLD], "DeadlinePassed", ["queue", "prefill"]),
    ],
)
async def test_errors_are_always_sent(
    tmp_path: Path, prompt: list[int], error: str, shape: list[str]
) -> None:
    async with traced_front(tmp_path) as (front, receiver, traces):
        deadline_seconds = time.monotonic() + 3600
        handle = await front.generate(traced(prompt, "r", deadline_seconds=deadline_seconds))
        if error == "DeadlinePassed":
            if prompt == [HOLD]:
                assert isinstance(await handle.next(), Started)
            let_time_pass(3600)
        with pytest.raises(RequestError):
            async for _ in handle:
                pass
        handle.close()
        await eventually_idle(front)
        await traces.stop()
        trace = only(receiver)
        assert trace.shape == shape
        assert attributes(trace.root)["error.type"] == error
        assert trace.root.status.code == trace.root.status.STATUS_CODE_ERROR
        assert trace.root.status.message == error


async def test_a_killer_of_engines_has_all_its_victims_in_its_trace(tmp_path: Path) -> None:
    async with traced_front(tmp_path) as (front, receiver, traces):
        with pytest.raises(RequestError):
            await collect(await front.generate(traced([CRASH, 3], "r", max_tokens=9)))
        await traces.stop()
        trace = only(receiver)
        assert attributes(trace.root)["error.type"] == "EngineCrashedByRequest"
        assert len(trace.named("resubmitted")) == front.stats().engine_restarts > 1


async def test_one_that_finds_no_place_is_a_trace_of_its_own(tmp_path: Path) -> None:
    async with traced_front(tmp_path, max_waiting_requests=1) as (front, receiver, traces):
        waiting = await front.generate(traced([WAIT], "waits"))
        with pytest.raises(QueueFull):
            await front.generate(traced([WAIT], "refused"))
        waiting.close()
        await eventually_idle(front)
        await traces.stop()
        trace = only(receiver)
        assert trace.request_id == "refused"
        assert attributes(trace.root)["error.type"] == "QueueFull"
