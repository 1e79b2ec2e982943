"""The pure parts of the front: journal, back-off, totals, hints, seeds, times."""

from __future__ import annotations

import asyncio
import itertools
import signal
from typing import Any

import msgspec
import pytest
from front_fakes import eventually
from loop_fakes import FakeLoop

from service.engine.figures import EngineStats, TierFigures
from service.engine.messages import (
    Finished,
    FinishReason,
    SamplingParams,
)
from service.engine.messages import SequenceSpec as Spec
from service.front.accounting import Account
from service.front.call import GenerationCall, candidate_seed, sequence_specs
from service.front.engine_death import engine_death
from service.front.engine_totals import EngineTotals
from service.front.journal import Journal
from service.front.restart import EngineLife, RestartPolicy
from service.front.retry_hint import RetryHint
from service.front.silence import SilenceWatch
from service.front.stall import StallWatch
from service.front.watched import Watched


def spec(sequence_id: int) -> Spec:
    return Spec(sequence_id, [1, 2, 3], [], SamplingParams(seed=9), max_tokens=5)


def stats(**changes: Any) -> EngineStats:
    names = EngineStats.__struct_fields__[: -len(EngineStats.__struct_defaults__)]
    return EngineStats(**{**dict.fromkeys(names, 0), **changes})


def test_journal_resubmits_what_was_received() -> None:
    journal = Journal()
    journal.open(spec(1))
    assert journal.submission(1) == spec(1)
    assert journal.started(1) == 0
    journal.record(1, [7])
    journal.record(1, [8, 9])
    resubmitted = journal.submission(1)
    assert resubmitted == msgspec.structs.replace(spec(1), output_ids=[7, 8, 9], resumed=True)
    journal.record(1, [10])
    assert resubmitted.output_ids == [7, 8, 9], "a sent message does not change"
    assert journal.started(1) == 3 + 4
    journal.close(1)
    journal.close(1)
    journal.record(1, [11])
    assert journal.started(1) == 0
    assert len(journal) == 0
    with pytest.raises(KeyError):
        journal.submission(1)


NOTHING, EVIDENCE, PROGRESS = EngineLife.NOTHING, EngineLife.EVIDENCE, EngineLife.PROGRESS
KEPT_OUT = EngineLife.KEPT_OUT


def test_restart_delays_double_up_to_the_bound_and_the_limit() -> None:
    policy = RestartPolicy(1.0, 5.0, limit=4, window_seconds=100.0, patience_seconds=50.0)
    delays = [policy.next_delay(t, NOTHING) for t in (0, 1, 2, 3, 4)]
    assert delays == [1.0, 2.0, 4.0, 5.0, None]
    assert policy.next_delay(99.9, NOTHING) is None
    assert policy.next_delay(100.0, NOTHING) == 5.0  # the first one is forgotten
    assert policy.next_delay(300.0, NOTHING) == 1.0


def test_a_search_is_no_crash_loop_and_progress_ends_one() -> None:
    policy = RestartPolicy(1.0, 5.0, limit=2, window_seconds=100.0, patience_seconds=50.0)
    lives = (NOTHING, EVIDENCE, EVIDENCE, NOTHING, EVIDENCE, PROGRESS, NOTHING, NOTHING, NOTHING)
    delays = [policy.next_delay(float(t), life) for t, life in enumerate(lives)]
    assert delays == [1.0, 2.0, 2.0, 2.0, 4.0, 1.0, 1.0, 2.0, None]


def test_engines_that_are_kept_out_are_timed_and_not_counted() -> None:
    policy = RestartPolicy(1.0, 5.0, limit=2, window_seconds=100.0, patience_seconds=50.0)
    delays = [policy.next_delay(t, KEPT_OUT) for t in (0, 1, 3, 7, 12, 49.9, 50.0)]
    assert delays == [1.0, 2.0, 4.0, 5.0, 5.0, 5.0, None]
    # One that came up ends the wait, though it was good for nothing.
    assert policy.next_delay(51.0, NOTHING) == 1.0
    assert policy.next_delay(52.0, KEPT_OUT) == 1.0
    assert policy.next_delay(101.9, KEPT_OUT) == 2.0
    assert policy.next_delay(102.0, KEPT_OUT) is None
    assert policy.next_delay(103.0, NOTHING) == 2.0


def test_a_long_patience_with_short_pauses_has_no_end_of_numbers() -> None:
    policy = RestartPolicy(1e-6, 5.0, limit=2, window_seconds=100.0, patience_seconds=1e5)
    assert [policy.next_delay(1.0, KEPT_OUT) for _ in range(3000)][-1] == 5.0


@pytest.mark.parametrize("life", EngineLife)
def test_no_restarts_means_none(life: EngineLife) -> None:
    assert (
        RestartPolicy(1.0, 5.0, limit=0, window_seconds=100.0, patience_seconds=50.0).next_delay(
            0.0, life
        )
        is None
    )


@pytest.mark.parametrize(
    ("exit_status", "killed_by_front", "cause", "crashed"),
    [
        (0, False, "why; exit status 0", True),
        (3, False, "why; exit status 3", True),
        (-signal.SIGSEGV, False, "why; killed by SIGSEGV", True),
        (-signal.SIGABRT, False, "why; killed by SIGABRT", True),
        (-signal.SIGKILL, False, "why; killed by SIGKILL", False),
        (-signal.SIGTERM, False, "why; killed by SIGTERM", False),
        (-signal.SIGKILL, True, "why; killed by the front", True),
        (-40, False, "why; killed by signal 40", True),
        (None, False, "why", True),
    ],
)
def test_who_killed_an_engine(
    exit_status: int | None, killed_by_front: bool, cause: str, crashed: bool
) -> None:
    death = engine_death("why", exit_status, killed_by_front=killed_by_front)
    assert (death.cause, death.crashed) == (cause, crashed)


def test_engine_counters_go_on_and_gauges_start_again() -> None:
    totals = EngineTotals()
    totals.engine_lost()
    assert totals.current() is None
    totals.update(stats(steps=5, decode_tokens=7, blocks_total=10, blocks_held=4, running=2))
    totals.engine_lost()
    totals.engine_lost()
    between = totals.current()
    assert between is not None
    assert (between.steps, between.blocks_held, between.running) == (5, 0, 0)
    assert (between.blocks_free, between.blocks_total) == (10, 10)
    totals.update(stats(steps=2, decode_tokens=1, blocks_total=8, blocks_held=3))
    now = totals.current()
    assert now is not None
    assert (now.steps, now.decode_tokens, now.blocks_held) == (7, 8, 3)


def test_counters_of_tiers_go_on_and_what_is_on_disk_stays() -> None:
    tiers = TierFigures(
        host_bytes=10,
        host_capacity_bytes=20,
        spilled_blocks=1,
        lost_blocks=2,
        loaded_blocks=3,
        loads=4,
        expired_loads=5,
        disk_bytes=30,
        disk_capacity_bytes=40,
        dropped_blocks=6,
        failures=7,
    )
    totals = EngineTotals()
    totals.update(stats(trims=2, swaps=1, blocks_kept=3, tiers=tiers))
    totals.engine_lost()
    between = totals.current()
    assert between is not None
    assert (between.trims, between.swaps, between.blocks_kept) == (2, 1, 0)
    assert between.tiers == msgspec.structs.replace(tiers, host_bytes=0, loads=0)
    totals.update(stats(trims=1, tiers=tiers))
    now = totals.current()
    assert now is not None
    assert now.trims == 3
    assert now.tiers == TierFigures(10, 20, 2, 4, 6, 4, 10, 30, 40, 12, 14)


def test_retry_hint_follows_the_queue() -> None:
    hint = RetryHint(max_seconds=30.0)
    assert hint.seconds(100) == 0.1
    for second in range(200):
        hint.admitted(float(second), waiting=5)
    assert hint.seconds(10) == pytest.approx(5.0, rel=0.01)
    assert hint.seconds(10_000) == 30.0
    hint.admitted(200.0, waiting=0)
    hint.admitted(10_000.0, waiting=3)  # nobody waited meanwhile: says nothing of the speed
    assert hint.seconds(10) == pytest.approx(5.0, rel=0.01)


def test_candidate_seeds() -> None:
    assert candidate_seed(2**64 - 1, 0) == 2**64 - 1
    seeds = {candidate_seed(s, i) for s, i in itertools.product((0, 1, 2**64 - 1), range(16))}
    assert len(seeds) == 48
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert candidate_seed(1, 1) == 10108197859057710069, (
        "a promise: answers can be reproduced later"
    )


def test_only_the_first_candidate_computes_prompt_logprobs() -> None:
    call = GenerationCall(
        request_id="r",
        prompt_ids=[1],
        sampling=SamplingParams(seed=3, prompt_logprobs=2, logprobs=1),
        candidate_count=2,
        skip_lookup=True,
        priority=4,
    )
    first, second = sequence_specs(
        call,
        range(5, 7),
        max_tokens=9,
        expected_tokens=7,
        eos_ids=(2,),
        namespace=b"n",
        arrival_seconds=1.5,
    )
    assert (first.sequence_id, second.sequence_id) == (5, 6)
    assert (first.sampling.seed, second.sampling.seed) == (3, candidate_seed(3, 1))
    assert (first.sampling.prompt_logprobs, second.sampling.prompt_logprobs) == (2, None)
    assert second.sampling.logprobs == 1
    assert not first.use_prefix_cache
    assert first.publish_blocks
    assert (first.max_tokens, first.eos_ids, first.namespace) == (9, (2,), b"n")
    assert (first.expected_tokens, second.expected_tokens) == (7, 7)
    assert (first.priority, first.arrival_seconds, first.resumed) == (4, 1.5, False)


def test_times_of_a_request() -> None:
    account = Account(arrival_seconds=10.0, prompt_tokens=4)
    idle = account.timings(now_seconds=12.0)
    assert (idle.queue_seconds, idle.prefill_seconds, idle.decode_seconds) == (2.0, 0.0, 0.0)
    assert idle.time_to_first_token_seconds == 0.0
    account.first_scheduled(11.0, cached_tokens=3)
    account.received(13.0)
    account.sent(13.5)
    account.received(17.0)
    account.sent(18.0)
    account.resumed(known_tokens=9, cached_tokens=4)
    account.finished(Finished(1, FinishReason.EOS, 2, 7, 2, 0.5))
    account.finished(Finished(2, FinishReason.EOS, 2, 1, 1, 0.25))
    timings = account.timings(now_seconds=20.0)
    assert (timings.queue_seconds, timings.prefill_seconds) == (1.0, 2.0)
    assert (timings.time_to_first_token_seconds, timings.decode_seconds) == (3.5, 4.0)
    assert (timings.preemption_count, timings.preempted_seconds) == (3, 0.75)
    usage = account.usage(completion_tokens=6)
    assert (usage.prompt_tokens, usage.completion_tokens) == (4, 6)
    assert (usage.cached_prompt_tokens, usage.recomputed_tokens) == (3, 5 + 7 + 1)


async def test_watched_tells_each_reader_the_latest_value() -> None:
    watched = Watched(1)
    slow, fast = watched.changes(), watched.changes()
    assert await anext(slow) == 1
    assert await anext(fast) == 1
    watched.set(1)
    pending = asyncio.create_task(anext(fast))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    assert not pending.done(), "no change"
    watched.set(2)
    assert await pending == 2
    watched.set(3)
    assert await anext(slow) == 3
    assert await anext(fast) == 3
    assert await watched.wait_for(lambda value: value == 3) == 3


async def test_stall_watch_reports_the_stalled_only() -> None:
    loop = asyncio.get_running_loop()
    stalled: list[str] = []
    watch = StallWatch[str](0.05, stalled.append)
    now = loop.time()
    watch.add("a", now)
    watch.add("b", now)
    watch.remove("a")
    watch.remove("a")
    watch.add("a", now + 0.05)  # as if added later: the timer has to be set again
    watch.add("c", now + 3600)
    assert len(watch) == 3
    await eventually(lambda: len(stalled) == 2)
    assert stalled == ["b", "a"]
    assert len(watch) == 1
    watch.close()
    assert len(watch) == 0


class TestSilenceWatch:
    @pytest.fixture
    def loop(self, monkeypatch: pytest.MonkeyPatch) -> FakeLoop:
        loop = FakeLoop()
        monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
        return loop

    def test_silence_is_told_once_between_one_limit_and_a_quarter_more(
        self, loop: FakeLoop
    ) -> None:
        calls: list[str] = []
        watch = SilenceWatch()
        watch.start(8.0, lambda: calls.append("silent"))
        assert loop.delay_seconds == 2.0
        loop.tick(4)
        assert not calls
        loop.tick()
        assert calls == ["silent"]
        assert loop.delay_seconds is None

    def test_a_word_starts_the_time_anew(self, loop: FakeLoop) -> None:
        calls: list[str] = []
        watch = SilenceWatch()
        watch.start(8.0, lambda: calls.append("silent"))
        for _ in range(10):
            loop.tick(4)
            watch.heard()
        assert not calls
        loop.tick(5)
        assert calls

    def test_new_terms_replace_the_old_ones(self, loop: FakeLoop) -> None:
        calls: list[str] = []
        watch = SilenceWatch()
        watch.start(8.0, lambda: calls.append("old"))
        loop.tick(4)
        watch.start(80.0, lambda: calls.append("new"))
        assert loop.delay_seconds == 20.0
        loop.tick(4)
        assert not calls
        loop.tick()
        assert calls == ["new"]
        watch.stop()
        watch.start(8.0, lambda: calls.append("stopped"))
        watch.stop()
        watch.stop()
        assert loop.delay_seconds is None
