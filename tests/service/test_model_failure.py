"""Logits that are not finite end one request with INTERNAL, and touch no other one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import structlog
from engine_fakes import EngineHarness, spec_of
from front_fakes import call, collect, count_prompt, counted_text, running_front
from numpy.typing import NDArray
from scripted_engine import FAIL

from service.engine.messages import SamplingParams
from service.engine.runner import StepBatch
from service.front.events import ModelFailed

POISON_TOKEN = 99
PREFIX = range(1, 41)  # two whole blocks and a half


def poison_rows(
    harness: EngineHarness, is_bad: Callable[[StepBatch, int], bool], value: float = np.nan
) -> None:
    """One value of each row of logits is bad where `is_bad(batch, sequence of the batch)`."""
    forward = harness.runner.forward

    def poisoned(batch: StepBatch) -> NDArray[np.float32]:
        logits = forward(batch)
        owners = np.searchsorted(batch.query_starts, batch.logit_rows, side="right") - 1
        for row, owner in enumerate(owners.tolist()):
            if is_bad(batch, owner):
                logits[row, 7] = value
        return logits

    harness.runner.forward = poisoned  # type: ignore[method-assign]


def has_poison(batch: StepBatch, owner: int) -> bool:
    """Whether a prompt has the token; a sequence that samples it by itself stays well."""
    tokens = batch.token_ids[batch.query_starts[owner] : batch.query_starts[owner + 1]]
    return len(tokens) > 1 and bool((tokens == POISON_TOKEN).any())


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SamplingParams(seed=3)])
def test_the_others_of_the_batch_say_what_they_would_have_said(
    value: float, sampling: SamplingParams
) -> None:
    harness = EngineHarness()
    poison_rows(harness, has_poison, value)
    good = [spec_of(i, [i, 2, 3], sampling=sampling) for i in (1, 2, 4, 5)]
    bad = spec_of(3, [3, POISON_TOKEN], sampling=sampling)
    harness.core.submit([*good[:2], bad, *good[2:]])
    harness.run()
    for spec in good:
        assert harness.output(spec.sequence_id) == harness.oracle(spec)
    failed = [failure for report in harness.reports for failure in report.failed]
    assert [(f.sequence_id, f.cause) for f in failed] == [
        (3, "1 logits after token 2 of 2 are not finite")
    ]
    assert not harness.output(3)
    assert 3 not in [f.sequence_id for report in harness.reports for f in report.finished]
    assert harness.manager.stats().held == 0


def test_a_failure_after_some_tokens() -> None:
    harness = EngineHarness()
    steps = itertools.count()
    poison_rows(harness, lambda _, owner: owner == 0 and next(steps) == 5)
    specs = [spec_of(1, [1]), spec_of(2, [2])]
    harness.core.submit(specs)
    harness.run()
    assert harness.output(1) == harness.oracle(specs[0])[:5]
    assert harness.output(2) == harness.oracle(specs[1])
    harness.core.submit([spec_of(1, [1], max_tokens=2)])  # its id is free again
    harness.run()
    assert harness.finished(1)


def test_bad_prompt_logprobs_are_a_failure_too() -> None:
    harness = EngineHarness(prefill_chunk_tokens=4)
    poison_rows(harness, has_poison)
    sampling = SamplingParams(temperature=0.0, prompt_logprobs=1)
    harness.core.submit([spec_of(1, [1, 2, POISON_TOKEN, *range(1, 20)], sampling=sampling)])
    harness.run()
    assert [f.sequence_id for report in harness.reports for f in report.failed] == [1]
    assert harness.manager.stats().held == 0


def test_what_a_failed_sequence_cached_is_not_used_again() -> None:
    """Its blocks may be what is broken: whoever comes next computes the prefix anew."""
    harness = EngineHarness(prefill_chunk_tokens=16)
    poison_rows(harness, has_poison)
    harness.core.submit([spec_of(1, [*PREFIX, POISON_TOKEN], namespace=b"a")])
    harness.core.submit([spec_of(2, PREFIX, namespace=b"b")])
    harness.run()
    assert harness.core.lookup(b"a", [*PREFIX]) == 0
    assert harness.core.lookup(b"b", [*PREFIX]) == 32
    again = spec_of(3, [*PREFIX, 50], namespace=b"a")
    harness.core.submit([again])
    harness.run()
    assert harness.output(3) == harness.oracle(again)
    assert harness.core.lookup(b"a", [*PREFIX]) == 32


async def test_the_front_ends_that_request_and_goes_on(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        pid = front.engine_process_id
        other = await front.generate(call(count_prompt(), "other", seed=1, max_tokens=50))
        with structlog.testing.capture_logs() as records:
            failing = await front.generate(call([FAIL], "bad", candidate_count=3))
            with pytest.raises(ModelFailed):
                await collect(failing)
        assert [(r["request_id"], r["cause"]) for r in records if r["event"] == "model failed"] == [
            ("bad", "told to fail")
        ]
        assert (await collect(other)).text == counted_text(1, 50)
        assert front.engine_process_id == pid
        stats = front.stats()
        assert (stats.live_requests, stats.failed_requests, stats.engine_restarts) == (0, 1, 0)
        assert len(record.submitted()) == 4
