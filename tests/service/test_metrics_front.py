"""Metrics of a front over scripted engines: after all that can happen, the sums are right."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from engine_deaths import kill_engine, until_running_again
from front_fakes import Brake, call, collect, count_prompt, eventually, running_front, say
from metrics_invariants import assert_adds_up
from metrics_page import MetricsPage, page_of
from scripted_engine import COUNT, EXHAUST, FAIL, HOLD, REFUSE, WAIT

from service.config import ServeSettings
from service.front.call import GenerationCall
from service.front.events import DuplicateRequestId, RequestError
from service.front.front import Front
from service.front.observer import Ending, RequestObserver
from service.telemetry.catalog import requests, server, tenants
from service.telemetry.exporter import Exporter
from service.telemetry.http_request import HttpRequest
from service.telemetry.metrics import Metrics
from service.telemetry.request_metrics import OUTCOMES, RequestMetrics
from service.telemetry.tenants import TenantNames
from service.telemetry.vllm_requests import VllmRequestMetrics

KINDS = (
    *("run", "run", "run", "long", "refuse", "fail", "exhaust", "wait", "hold", "doubled", "slow"),
)


@dataclass
class Witness(RequestObserver):
    """Passes everything on, and keeps count by itself."""

    metrics: RequestMetrics
    outcomes: Counter[str] = field(default_factory=Counter)
    live: int = 0
    first_tokens: int = 0
    tokens: int = 0
    gaps: int = 0
    candidates_heard: int = 0

    def refused(self, call: GenerationCall, error: RequestError) -> None:
        self.metrics.refused(call, error)

    def admitted(self, call: GenerationCall) -> None:
        self.live += 1
        self.metrics.admitted(call)

    def scheduled(self, call: GenerationCall, queue_seconds: float) -> None:
        assert queue_seconds >= 0
        self.metrics.scheduled(call, queue_seconds)

    def first_token(
        self, call: GenerationCall, since_arrival_seconds: float, since_batch_seconds: float
    ) -> None:
        assert since_arrival_seconds >= since_batch_seconds >= 0
        self.first_tokens += 1
        self.metrics.first_token(call, since_arrival_seconds, since_batch_seconds)

    def received(self, call: GenerationCall, tokens: int, gap_seconds: float | None) -> None:
        self.tokens += tokens
        if gap_seconds is None:
            self.candidates_heard += 1
        else:
            self.gaps += 1
        self.metrics.received(call, tokens, gap_seconds)

    def resumed(self, call: GenerationCall, candidate: int) -> None:
        self.metrics.resumed(call, candidate)

    def ended(self, call: GenerationCall, ending: Ending) -> None:
        self.live -= 1
        self.outcomes[OUTCOMES[type(ending.error)] if ending.error else "no error"] += 1
        self.metrics.ended(call, ending)


def observed(front: Front) -> tuple[Exporter, Witness]:
    exporter = Exporter("scripted")
    witness = Witness(RequestMetrics(exporter, TenantNames(3, [])))
    front.observe(witness)
    front.observe(VllmRequestMetrics(exporter))
    return exporter, witness


async def one_request(front: Front, rng: random.Random, number: int) -> None:
    kind = rng.choice(KINDS)
    prompts = {
        "refuse": [REFUSE],
        "fail": [FAIL],
        "exhaust": [EXHAUST],
        "wait": [WAIT],
        "hold": [HOLD],
        "run": count_prompt(rng.randint(1, 5)),
        "long": count_prompt(),
        "doubled": count_prompt(),
        "slow": count_prompt(),
    }
    options: dict[str, Any] = {"max_tokens": rng.choice((1, 7, 30)), "tenant": f"t{number % 6}"}
    if kind in ("long", "slow"):
        options["max_tokens"] = 2000
    if rng.random() < 0.2:
        options["candidate_count"] = 3
    if rng.random() < 0.2:
        options["stop"] = ("A", "b")
    if kind in ("wait", "hold") or rng.random() < 0.1:
        limit_seconds = rng.uniform(0.0, 0.3)
        if rng.random() < 0.5:
            options["time_limit_seconds"] = limit_seconds
        else:
            options["deadline_seconds"] = time.monotonic() + limit_seconds
    request_id = "same" if kind == "doubled" else f"r{number}"
    await asyncio.sleep(rng.uniform(0, 1.0))
    try:
        handle = await front.generate(call(prompts[kind], request_id, **options))
    except RequestError:
        return
    if kind == "slow":
        await asyncio.sleep(0.6)  # longer than the front lets output wait for it
    reader = asyncio.create_task(collect(handle))
    if rng.random() < 0.3 or kind == "long":
        await asyncio.sleep(rng.uniform(0, 0.3))
        if rng.random() < 0.5:
            front.abort([request_id], tenant=options["tenant"], reason="chaos")
        else:
            handle.close()
    with contextlib.suppress(RequestError):
        await asyncio.wait_for(reader, 200)


async def each_ending_once(front: Front, completed: int) -> int:
    """What chaos leaves to chance: all endings, of all tenants. Answers how many requests."""
    endings = {"refuse": [REFUSE], "fail": [FAIL], "exhaust": [EXHAUST]}
    for number, (name, prompt) in enumerate(endings.items()):
        with pytest.raises(RequestError):
            await collect(await front.generate(call(prompt, name, tenant=f"t{number}")))
    aborted = await front.generate(call([HOLD], "aborted", tenant="t3"))
    front.abort(["aborted"], tenant="t3", reason="order")
    with pytest.raises(RequestError):
        await collect(aborted)
    slow = await front.generate(call([COUNT], "slow", max_tokens=2000, tenant="t4"))
    failed = front.stats().failed_requests
    await eventually(lambda: front.stats().failed_requests == failed + 1)
    slow.close()
    cancelled = await front.generate(call([HOLD], "cancelled", tenant="t5"))
    cancelled.close()
    for number in range(completed):
        await collect(await front.generate(call(say("x"), f"whole {number}")))
    return len(endings) + 3 + completed


@pytest.mark.parametrize("seed", [1, 2])
async def test_after_chaos_the_sums_are_right(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    limits = {"max_waiting_requests": 20, "max_live_requests": 60, "slow_reader_seconds": 0.2}
    brake = Brake(tmp_path, 3000)  # the steady one stays, whatever time all that takes
    async with running_front(tmp_path, *brake.options, **limits) as (front, _record):
        exporter, witness = observed(front)
        steady = await front.generate(call([COUNT], "steady", max_tokens=4000))
        reader = asyncio.create_task(collect(steady))
        await eventually(lambda: witness.tokens > 0)
        with pytest.raises(DuplicateRequestId):
            await front.generate(call([COUNT], "steady"))
        calls = [asyncio.create_task(one_request(front, rng, number)) for number in range(200)]
        for _ in range(2):
            await asyncio.sleep(0.3)
            await until_running_again(front, kill_engine(front))
        await asyncio.gather(*calls)
        calm = await each_ending_once(front, 21)
        steady.close()
        await reader
        await eventually(lambda: front.stats().live_requests == 0)
        page, stats = page_of(exporter), front.stats()

    finished = {o: page.value(requests.FINISHED, outcome=o) for o in requests.OUTCOME.values or ()}
    admitted, refused = page.value(requests.ADMITTED), page.total(requests.REFUSED)
    assert_adds_up(page)
    assert admitted + refused == len(calls) + calm + 2
    assert witness.live == 0
    assert finished["completed"] == stats.completed_requests > 20
    assert finished["cancelled"] == stats.cancelled_requests > 0
    gave_way = finished["queue_full"] + finished["deadline_unreachable"]
    assert refused + gave_way == stats.rejected_requests > 0
    for outcome in (
        "exceeds_capacity",
        "model_failed",
        "device_exhausted",
        "aborted",
        "slow_reader",
    ):
        assert finished[outcome] == witness.outcomes[outcome] > 0

    assert page.value(requests.FIRST_TOKEN, "_count") == witness.first_tokens > 20
    assert page.value(requests.TOKEN_GAP, "_count") == witness.gaps > witness.first_tokens
    assert witness.candidates_heard >= witness.first_tokens
    assert page.value(requests.OUTPUT_TOKENS) == witness.tokens > 0
    assert page.value(requests.RESUBMITTED) >= 2, "each time the steady one, at least"
    assert len(page.values(tenants.ADMITTED)) == 4, "those there is room for, and the others"
    assert page.value(tenants.ADMITTED, tenant="other") > 0


async def test_each_token_but_the_first_of_a_candidate_has_a_gap(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _record):
        exporter, _witness = observed(front)
        counted = await front.generate(call([COUNT], "a", max_tokens=9, candidate_count=3))
        said = await front.generate(call(say("four"), "b", stop=("r",)))
        await asyncio.gather(collect(counted), collect(said))
    page = page_of(exporter)
    assert page.value(requests.OUTPUT_TOKENS) == 3 * 9 + 4
    assert page.value(requests.TOKEN_GAP, "_count") == 3 * 8 + 3
    assert page.value(requests.FIRST_TOKEN, "_count") == 2
    assert page.value(requests.QUEUE, "_count") == 2
    assert page.value(requests.REQUEST_OUTPUT_TOKENS, "_sum") == 3 * 9 + 4
    by_reason = {
        reason: page.value(requests.CANDIDATES_FINISHED, reason=reason)
        for reason in ("max_tokens", "stop", "eos", "none")
    }
    assert by_reason == {"max_tokens": 3, "stop": 1, "eos": 0, "none": 0}
    # As the script has it: 1 cached token of each request, 1 token of each candidate but the
    # stopped one, whose figures come after its end, computed again.
    assert page.value(requests.CACHED_PROMPT_TOKENS) == 2
    assert page.value(requests.RECOMPUTED_TOKENS) >= 3


async def test_nothing_is_counted_that_was_refused_at_once(tmp_path: Path) -> None:
    async with running_front(tmp_path, max_live_requests=1) as (front, _record):
        exporter, _witness = observed(front)
        held = await front.generate(call([HOLD], "held", tenant="a"))
        with pytest.raises(RequestError):
            await front.generate(call([COUNT], "b", tenant="b"))
        with pytest.raises(RequestError):
            await front.generate(call([COUNT], "held", tenant="a"))
        await front.drain(0.0)
        with pytest.raises(RequestError):
            await front.generate(call([COUNT], "c", tenant="b"))
        held.close()
    page = page_of(exporter)
    reasons = {r: page.value(requests.REFUSED, reason=r) for r in requests.REASON.values or ()}
    assert {reason for reason, count in reasons.items() if count} == {
        *("queue_full", "duplicate_id", "draining"),
    }
    assert page.value(requests.ADMITTED) == 1
    assert page.value(requests.FINISHED, outcome="draining") == 1
    assert page.value(tenants.REFUSED, tenant="b") == 2


async def test_counters_of_the_engine_go_on_over_its_death(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _record):
        settings = ServeSettings(served_model_name="m", metrics_port=0)
        metrics = Metrics(front, settings)
        steps = []
        for number in range(3):
            await collect(await front.generate(call([COUNT], f"r{number}", max_tokens=20)))
            await until_running_again(front, kill_engine(front))
            page = MetricsPage.of((await metrics.respond(HttpRequest("GET", "/metrics", ""))).body)
            steps.append(page.value(server.COMPUTED_TOKENS, phase="decode"))
            assert page.value(server.RESTARTS) == number + 1
            await asyncio.sleep(0.11)  # until the page is old
    assert steps == [20, 40, 60]
