"""The engine when KV blocks run short: admission, preemption, eviction, sharing."""

from __future__ import annotations

import numpy as np
import pytest
from engine_fakes import EngineHarness, spec_of

from service.engine.messages import FinishReason, SamplingParams
from service.engine.step_plan import NoProgress


def distinct_prompt(seed: int, tokens: int, vocab_size: int = 256) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, tokens).tolist()


def count_calls(monkeypatch: pytest.MonkeyPatch, target: object, name: str) -> list[object]:
    """Lets the method through and keeps what it answered."""
    original = getattr(target, name)
    answers: list[object] = []

    def counted(*arguments: object) -> object:
        answers.append(original(*arguments))
        return answers[-1]

    monkeypatch.setattr(target, name, counted)
    return answers


class TestAdmission:
    """NeverFits, NotNow, and who may pass whom."""

    def test_prompts_longer_than_the_pool_are_refused_at_once_and_own_nothing(self) -> None:
        harness = EngineHarness(blocks=4)
        harness.core.submit([spec_of(i, prompt=range(100)) for i in range(10)])
        report = harness.step()
        assert [r.sequence_id for r in report.refused] == list(range(10))
        assert report.refused[0].needed_blocks == 7
        assert report.refused[0].total_blocks == 4
        assert report.refused[0].limit_tokens == 64
        assert report.stats.blocks_held == 0
        assert not harness.core.has_work

    @pytest.mark.parametrize(("prompt_tokens", "fits"), [(48, True), (64, True), (65, False)])
    def test_the_last_block_of_the_pool_can_be_used(self, prompt_tokens: int, fits: bool) -> None:
        harness = EngineHarness(blocks=4)
        harness.core.submit([spec_of(1, prompt=range(prompt_tokens), max_tokens=1)])
        harness.run()
        assert bool(harness.output(1)) == fits

    @pytest.mark.parametrize("ends_by_itself", [True, False])
    def test_a_pin_that_leaves_too_little_room_is_waited_for(self, ends_by_itself: bool) -> None:
        """Nothing runs meanwhile, and nobody calls that a standstill."""
        harness = EngineHarness(blocks=10)
        pinned = distinct_prompt(1, 48)
        harness.core.submit([spec_of(1, pinned, max_tokens=2)])
        harness.run()
        seconds = 8.0 if ends_by_itself else 1e6  # a step of the harness lasts one
        pin = harness.manager.pin(b"", np.array(pinned, np.int32), seconds)
        harness.core.submit([spec_of(2, distinct_prompt(2, 130), max_tokens=2)])
        for _ in range(6):
            assert not harness.step().started
        assert harness.core.stalled_steps
        if not ends_by_itself:
            harness.manager.unpin(pin.pin_id)
        harness.run(max_steps=10)
        assert harness.finished(2).reason is FinishReason.MAX_TOKENS

    def test_small_ones_pass_a_big_one_but_only_so_many(self) -> None:
        harness = EngineHarness(blocks=10, load_line=1.0, max_admission_skips=3)
        holder = spec_of(0, prompt=distinct_prompt(0, 96), max_tokens=17)
        big = spec_of(1, prompt=distinct_prompt(1, 150), max_tokens=1)
        small = [spec_of(i, prompt=distinct_prompt(i, 8), max_tokens=2) for i in range(2, 12)]
        harness.core.submit([holder, big, *small])
        harness.run()
        order = [s.sequence_id for report in harness.reports for s in report.started]
        assert order == [0, 2, 3, 4, 1, *range(5, 12)]

    def test_higher_priority_starts_first(self) -> None:
        harness = EngineHarness(max_running_sequences=1)
        harness.core.submit(
            [spec_of(i, prompt=[i], max_tokens=1, priority=i % 3) for i in range(6)]
        )
        harness.run()
        order = [s.sequence_id for report in harness.reports for s in report.started]
        assert order == [2, 5, 1, 4, 0, 3]

    def test_headroom_above_the_load_line_is_left_to_growth(self) -> None:
        harness = EngineHarness(blocks=20, load_line=0.5)
        harness.core.submit(
            [spec_of(i, prompt=distinct_prompt(i, 80), max_tokens=30) for i in range(4)]
        )
        report = harness.step()
        assert report.stats.blocks_held == 10
        assert report.stats.running == 2

    def test_long_queue_is_served_whole(self) -> None:
        harness = EngineHarness(blocks=8, load_line=1.0, max_running_sequences=4)
        specs = [spec_of(i, prompt=distinct_prompt(i, 40), max_tokens=2) for i in range(200)]
        harness.core.submit(specs)
        harness.run()
        assert all(len(harness.output(i)) == 2 for i in range(200))

    def test_steps_of_pure_decoding_do_not_ask_again_for_what_did_not_fit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = EngineHarness(blocks=10, load_line=1.0)
        asked = count_calls(monkeypatch, harness.manager, "admit")
        harness.core.submit([spec_of(0, prompt=distinct_prompt(0, 100), max_tokens=50)])
        harness.core.submit([spec_of(i, prompt=distinct_prompt(i, 80)) for i in range(1, 200)])
        harness.step()
        assert len(asked) <= 1 + 64
        harness.step()
        in_vain = len(asked)
        for _ in range(20):
            harness.step()
        assert len(asked) == in_vain
        assert harness.core.stats().waiting == 199

    def test_work_that_nobody_does_is_an_error_and_not_a_spin(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        harness = EngineHarness()
        monkeypatch.setattr(harness.manager, "pending_prefix", lambda _request: 16)
        harness.core.submit([spec_of(1, prompt=range(20))])
        with pytest.raises(NoProgress, match="waiting") as caught:
            harness.run(max_steps=10)
        assert [sequence.sequence_id for sequence in caught.value.waiting] == [1]


class TestPreemption:
    """Decoding that outgrows the pool."""

    def test_growth_of_twice_the_pool_lets_all_eight_finish(self) -> None:
        harness = EngineHarness(blocks=32, load_line=1.0)
        specs = [spec_of(i, prompt=distinct_prompt(i, 32), max_tokens=96) for i in range(8)]
        harness.core.submit(specs)
        harness.run(max_steps=2000)
        assert harness.core.stats().preemptions > 0
        for spec in specs:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)

    def test_pool_of_1024_tokens_serves_four_that_grow_to_400(self) -> None:
        harness = EngineHarness(blocks=64)
        specs = [spec_of(i, prompt=distinct_prompt(i, 20), max_tokens=380) for i in range(4)]
        harness.core.submit(specs)
        harness.run(max_steps=3000)
        for spec in specs:
            assert harness.finished(spec.sequence_id).reason is FinishReason.MAX_TOKENS
            assert harness.output(spec.sequence_id) == harness.oracle(spec)

    def test_a_preempted_one_comes_back_before_newcomers(self) -> None:
        harness = EngineHarness(blocks=6, load_line=1.0)
        harness.core.submit(
            [spec_of(i, prompt=distinct_prompt(i, 40), max_tokens=20) for i in (1, 2)]
        )
        while not harness.core.stats().preempted:
            harness.step()
        harness.core.submit([spec_of(3, prompt=distinct_prompt(3, 8), max_tokens=1)])
        harness.run()
        (preempted,) = (i for i in (1, 2) if harness.finished(i).preemptions)
        resumed = next(
            number
            for number, report in enumerate(harness.reports)
            if harness.finished(preempted).preemptions
            and any(o.sequence_id == preempted for o in report.outputs)
            and report.stats.preempted == 0
            and report.stats.preemptions
        )
        started = next(
            number
            for number, report in enumerate(harness.reports)
            if any(s.sequence_id == 3 for s in report.started)
        )
        assert resumed <= started

    def test_lower_priority_gives_way(self) -> None:
        harness = EngineHarness(blocks=6, load_line=1.0)
        harness.core.submit(
            [
                spec_of(1, prompt=distinct_prompt(1, 40), max_tokens=30, priority=0),
                spec_of(2, prompt=distinct_prompt(2, 20), max_tokens=50, priority=1),
            ]
        )
        harness.run()
        assert harness.finished(1).preemptions > 0
        assert harness.finished(2).preemptions == 0

    def test_blocks_of_a_victim_are_not_given_away_in_the_step_that_took_them(self) -> None:
        def pressed() -> EngineHarness:
            harness = EngineHarness(blocks=6, load_line=1.0)
            harness.core.submit(
                [spec_of(i, prompt=distinct_prompt(i, 40), max_tokens=20) for i in (1, 2)]
            )
            return harness

        rehearsal = pressed()
        rehearsal.run()
        ((step, _),) = rehearsal.preemptions
        harness = pressed()
        for _ in range(step):
            harness.step()
        harness.core.submit([spec_of(3, prompt=[1], max_tokens=1, priority=9)])
        assert harness.step().started == []
        assert len(harness.preemptions) == 1
        assert [started.sequence_id for started in harness.step().started] == [3]

    def test_a_returner_is_spared_until_it_has_produced_a_token(self) -> None:
        harness = EngineHarness(blocks=12, load_line=1.0, prefill_chunk_tokens=1)
        harness.core.submit(
            [
                spec_of(1, prompt=distinct_prompt(1, 30), max_tokens=160),
                spec_of(2, prompt=distinct_prompt(2, 60), max_tokens=40, priority=-1),
                spec_of(3, prompt=distinct_prompt(3, 30), max_tokens=60),
            ]
        )
        harness.run()
        # 2 ranks lowest both times, but the second time it has just come back.
        assert [victim for _, victim in harness.preemptions][:2] == [2, 1]
        harness.assert_every_preemption_is_paid_with_a_token()
        harness.assert_moves_are_told()

    def test_a_lone_sequence_that_outgrows_the_pool_is_evicted_without_a_preemption(self) -> None:
        harness = EngineHarness(blocks=4)
        spec = spec_of(1, prompt=range(30), max_tokens=1000)
        harness.core.submit([spec])
        harness.run(max_steps=100)
        end = harness.finished(1)
        assert (end.reason, end.preemptions) == (FinishReason.EVICTED, 0)
        # 64 slots hold the prompt and 34 outputs; the last output needs no slot.
        assert harness.output(1) == harness.oracle(spec)[: 64 - 30 + 1]
        assert harness.manager.stats().held == 0

    def test_others_go_on_when_one_outgrows_the_pool(self) -> None:
        harness = EngineHarness(blocks=8, load_line=1.0)
        others = [spec_of(i, prompt=distinct_prompt(i, 20), max_tokens=40) for i in (2, 3)]
        harness.core.submit([spec_of(1, prompt=range(20), max_tokens=1000), *others])
        harness.run(max_steps=2000)
        assert harness.finished(1).reason is FinishReason.EVICTED
        for spec in others:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)

    @pytest.mark.parametrize("chunk_tokens", [7, 256])
    def test_recomputed_tokens_and_preempted_time_are_told(self, chunk_tokens: int) -> None:
        harness = EngineHarness(blocks=6, load_line=1.0, prefill_chunk_tokens=chunk_tokens)
        harness.core.submit(
            [spec_of(i, prompt=distinct_prompt(i, 40), max_tokens=20) for i in (1, 2)]
        )
        harness.run()
        (end,) = (harness.finished(i) for i in (1, 2) if harness.finished(i).preemptions)
        assert end.preemptions == 1
        assert end.recomputed_tokens > 0
        assert end.preempted_seconds >= 1.0
        generated = sum(len(harness.output(i)) for i in (1, 2))
        # The first token of each comes with its prefill.
        assert harness.core.stats().prefill_tokens == 80 + end.recomputed_tokens + 1
        assert harness.core.stats().decode_tokens == generated

    def test_hits_of_returning_sequences_do_not_count_as_hits(self) -> None:
        harness = EngineHarness(blocks=24, load_line=1.0, vocab_size=4096)
        prompts = [distinct_prompt(i, 60, vocab_size=4096) for i in range(60)]
        harness.core.submit(
            [spec_of(i, prompt=prompt, max_tokens=60) for i, prompt in enumerate(prompts)]
        )
        harness.run(max_steps=20_000)
        stats = harness.core.stats()
        assert stats.preemptions > 0
        assert stats.lookup_tokens == 60 * 60
        assert stats.hit_tokens == 0

    def test_prompt_logprobs_survive_a_preemption_in_the_middle_of_the_prompt(self) -> None:
        harness = EngineHarness(blocks=8, load_line=1.0, prefill_chunk_tokens=16)
        sampling = SamplingParams(temperature=0.0, prompt_logprobs=2)
        victim = spec_of(2, prompt=distinct_prompt(2, 80), sampling=sampling, priority=-1)
        harness.core.submit([spec_of(1, prompt=distinct_prompt(1, 46), max_tokens=40), victim])
        harness.run()
        assert harness.finished(2).preemptions == 1
        (first, *_) = harness.outputs(2)
        assert first.prompt_logprobs == harness.oracle_prompt_logprobs(victim)


def test_200_decode_steps_give_back_every_block() -> None:
    harness = EngineHarness(blocks=20)
    harness.core.submit([spec_of(1, prompt=range(5), max_tokens=200)])
    harness.run()
    stats = harness.core.stats()
    assert stats.blocks_held == 0
    assert stats.blocks_free + stats.blocks_cached == 20


class TestSharing:
    """A prefix that many ask for is computed once, also when all come at once."""

    def test_sixteen_requests_compute_a_common_prefix_of_2048_tokens_once(self) -> None:
        harness = EngineHarness(blocks=1024)
        prefix = distinct_prompt(0, 2048)
        specs = [
            spec_of(i, prompt=prefix + distinct_prompt(i + 1, 20), max_tokens=4) for i in range(16)
        ]
        harness.core.submit(specs)
        harness.run()
        assert harness.core.stats().prefill_tokens == 2048 + 16 * 20
        for spec in specs:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)
            cached = harness.started(spec.sequence_id).cached_tokens
            assert cached == (0 if spec.sequence_id == 0 else 2048)

    def test_prompt_of_n_candidates_is_computed_once(self) -> None:
        harness = EngineHarness()
        prompt = distinct_prompt(0, 170)
        specs = [
            spec_of(i, prompt=prompt, sampling=SamplingParams(temperature=1.0, seed=i))
            for i in range(8)
        ]
        harness.core.submit(specs)
        harness.run()
        assert harness.core.stats().prefill_tokens == 170 + 7 * (170 - 160)
        for spec in specs:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)

    def test_unrelated_request_does_not_wait_for_somebody_elses_prefix(self) -> None:
        harness = EngineHarness(prefill_chunk_tokens=32, max_step_tokens=128)
        prefix = distinct_prompt(0, 320)
        harness.core.submit([spec_of(i, prompt=[*prefix, i]) for i in range(8)])
        harness.core.submit([spec_of(99, prompt=[1, 2, 3])])
        report = harness.step()
        assert [started.sequence_id for started in report.started] == [0, 99]

    def test_namespaces_do_not_wait_for_each_other_and_do_not_share(self) -> None:
        harness = EngineHarness()
        prompt = distinct_prompt(0, 100)
        harness.core.submit(
            [spec_of(i, prompt=prompt, namespace=name) for i, name in enumerate([b"a", b"b"])]
        )
        report = harness.step()
        assert len(report.started) == 2
        assert report.stats.prefill_tokens == 200

    def test_prompt_logprobs_are_computed_although_the_prompt_is_cached(self) -> None:
        harness = EngineHarness()
        prompt = distinct_prompt(0, 100)
        harness.core.submit([spec_of(1, prompt=prompt)])
        harness.run()
        spec = spec_of(2, prompt, sampling=SamplingParams(temperature=0.0, prompt_logprobs=1))
        harness.core.submit([spec])
        harness.run()
        assert harness.outputs(2)[0].prompt_logprobs == harness.oracle_prompt_logprobs(spec)
        assert harness.started(2).cached_tokens == 0

    def test_rows_of_prompt_logprobs_are_bounded_per_step(self) -> None:
        harness = EngineHarness(prompt_logprob_rows=8)
        sampling = SamplingParams(temperature=0.0, prompt_logprobs=20)
        specs = [
            spec_of(i, prompt=distinct_prompt(i, 50), sampling=sampling, max_tokens=1)
            for i in range(4)
        ]
        harness.core.submit(specs)
        harness.run()
        assert max(len(batch.logit_rows) for batch in harness.runner.batches) <= 8 + 4
        for spec in specs:
            expected = harness.oracle_prompt_logprobs(spec)
            assert harness.outputs(spec.sequence_id)[0].prompt_logprobs == expected
