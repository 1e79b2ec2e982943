"""Who gives way to whom in the engine, what that costs, and that it comes to an end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from engine_fakes import EngineHarness, spec_of

from kvcache.preemption import Preemption, PreemptionMode, PreemptionPlan
from service.engine.messages import FinishReason, Resize, SequenceSpec, ShrinkPolicy
from service.engine.request import Sequence
from service.engine.sequence_tiers import SequenceTiers
from service.engine.victims import VictimChooser
from service.engine.waiting import WaitingRoom


def prompt(seed: int, tokens: int, vocab_size: int = 256) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, tokens).tolist()


def say_the_same_as_alone(harness: EngineHarness, specs: list[SequenceSpec]) -> None:
    for spec in specs:
        assert harness.output(spec.sequence_id) == harness.oracle(spec)


def started_in(harness: EngineHarness, sequence_id: int) -> int:
    """The number of the report that told of its start."""
    return next(
        number
        for number, report in enumerate(harness.reports)
        if any(started.sequence_id == sequence_id for started in report.started)
    )


class TestPriority:
    """A waiting sequence of higher priority starts at the cost of running lower ones."""

    def test_it_takes_a_place_in_a_full_batch_in_the_step_it_comes(self) -> None:
        harness = EngineHarness(max_running_sequences=2)
        low = [spec_of(i, prompt(i, 20), max_tokens=30) for i in (1, 2)]
        harness.core.submit(low)
        for _ in range(5):
            harness.step()
        high = spec_of(3, prompt(3, 20), max_tokens=5, priority=1)
        harness.core.submit([high])
        report = harness.step()
        assert [started.sequence_id for started in report.started] == [3]
        assert report.stats.running == 2
        assert report.stats.preempted == 1
        harness.run()
        say_the_same_as_alone(harness, [*low, high])

    def test_it_takes_blocks_from_a_full_pool_in_the_step_it_comes(self) -> None:
        harness = EngineHarness(blocks=12, load_line=1.0)
        low = [spec_of(i, prompt(i, 80), max_tokens=16) for i in (1, 2)]
        harness.core.submit(low)
        for _ in range(3):
            harness.step()
        assert harness.core.stats().blocks_held == 12
        high = spec_of(3, prompt(3, 40), max_tokens=5, priority=1)
        harness.core.submit([high])
        report = harness.step()
        assert [started.sequence_id for started in report.started] == [3]
        harness.run()
        assert harness.finished(3).preemptions == 0
        say_the_same_as_alone(harness, [*low, high])

    def test_a_victim_that_was_to_be_computed_gives_its_tokens_of_the_step_back(self) -> None:
        harness = EngineHarness(
            max_running_sequences=1, max_step_tokens=32, prefill_chunk_tokens=30
        )
        low = spec_of(1, prompt(1, 200), max_tokens=4)
        harness.core.submit([low])
        harness.step()
        high = spec_of(2, prompt(2, 40), max_tokens=4, priority=1)
        harness.core.submit([high])
        report = harness.step()
        assert [started.sequence_id for started in report.started] == [2]
        assert len(harness.runner.batches[-1].token_ids) == 30
        harness.run()
        say_the_same_as_alone(harness, [low, high])

    def test_a_place_that_nobody_may_give_is_not_taken(self) -> None:
        harness = EngineHarness(max_running_sequences=1, prefill_chunk_tokens=16)
        low = spec_of(1, prompt(1, 100), max_tokens=8, use_prefix_cache=False)
        first = spec_of(2, prompt(2, 20), max_tokens=2, priority=1)
        second = spec_of(3, prompt(3, 20), max_tokens=2, priority=1)
        harness.core.submit([low])
        harness.step()
        harness.core.submit([first])
        harness.run_until(lambda: harness.ended(2))
        assert harness.step().stats.running == 1  # the low one is back, at its beginning
        harness.core.submit([second])
        assert harness.step().stats.running == 1
        assert harness.core.stats().waiting == 1
        harness.run()
        harness.assert_every_preemption_is_paid_with_a_token()
        harness.assert_moves_are_told()
        say_the_same_as_alone(harness, [low, first, second])

    def test_equals_do_not_give_way(self) -> None:
        harness = EngineHarness(max_running_sequences=1)
        harness.core.submit([spec_of(i, prompt(i, 20), max_tokens=10) for i in (1, 2, 3)])
        harness.run()
        assert harness.preemptions == []

    def test_nobody_gives_way_when_that_would_not_be_enough(self) -> None:
        harness = EngineHarness(blocks=12, load_line=1.0)
        equal = spec_of(1, prompt(1, 120), max_tokens=8, priority=1)
        low = spec_of(2, prompt(2, 40), max_tokens=8)
        harness.core.submit([equal, low])
        harness.step()
        harness.core.submit([spec_of(3, prompt(3, 100), max_tokens=2, priority=1)])
        harness.run_until(lambda: harness.ended(2))
        assert harness.preemptions == []
        harness.run()
        assert harness.finished(3).reason is FinishReason.MAX_TOKENS

    def test_lower_ones_that_share_all_their_blocks_give_way_too(self) -> None:
        harness = EngineHarness(blocks=12, load_line=1.0)
        text = prompt(0, 128)
        low = [spec_of(i, [*text, i], max_tokens=16) for i in range(3)]
        harness.core.submit(low)
        for _ in range(4):
            harness.step()
        assert harness.core.stats().blocks_shared == 8
        high = spec_of(9, prompt(9, 150), max_tokens=3, priority=1)
        harness.core.submit([high])
        report = harness.step()
        assert [started.sequence_id for started in report.started] == [9]
        harness.run()
        say_the_same_as_alone(harness, [*low, high])

    def test_a_stream_of_higher_ones_makes_no_victim_pay_twice_for_a_token(self) -> None:
        harness = EngineHarness(max_running_sequences=2)
        low = [spec_of(i, prompt(i, 40), max_tokens=20) for i in (1, 2)]
        harness.core.submit(low)
        high = [spec_of(100 + i, prompt(i, 8), max_tokens=2, priority=5) for i in range(30)]
        for spec in high:
            harness.core.submit([spec])
            for _ in range(3):  # two of which it runs in
                harness.step()
        harness.run()
        assert len(harness.preemptions) > 2
        harness.assert_every_preemption_is_paid_with_a_token()
        harness.assert_moves_are_told()
        say_the_same_as_alone(harness, [*low, *high])

    def test_prefill_of_the_higher_goes_first(self) -> None:
        harness = EngineHarness(max_step_tokens=40, prefill_chunk_tokens=32)
        harness.core.submit([spec_of(1, prompt(1, 300))])
        harness.step()
        harness.core.submit([spec_of(2, prompt(2, 300), priority=1)])
        harness.run()
        assert harness.output_steps(2)[0] < harness.output_steps(1)[0]


class TestCost:
    """What preemption costs in tokens computed again."""

    def test_long_prompts_that_do_not_all_fit_do_not_thrash(self) -> None:
        """A pool for four prompts, without their outputs, and load for more than twice that."""
        harness = EngineHarness(blocks=264, load_line=1.0, max_running_sequences=16)
        specs = [spec_of(i, prompt(i, 1000), max_tokens=200) for i in range(9)]
        harness.core.submit(specs)
        harness.run()
        assert harness.preemptions
        useful_tokens = len(specs) * (1000 + 200 - 1)
        assert useful_tokens / harness.runner.computed_tokens >= 0.9
        say_the_same_as_alone(harness, specs)

    def test_the_victims_cost_less_than_the_last_admitted_would(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def load() -> EngineHarness:
            harness = EngineHarness(blocks=64, load_line=1.0)
            harness.core.submit(
                [
                    spec_of(i, prompt(i, 16 + 37 * i % 200), max_tokens=40 + 53 * i % 150)
                    for i in range(24)
                ]
            )
            harness.run()
            assert harness.preemptions
            return harness

        ours = load().runner.computed_tokens

        def last_admitted(
            _chooser: VictimChooser, running: list[Sequence], _needy: Sequence
        ) -> PreemptionPlan | None:
            if len(running) < 2:
                return None
            victim = running[-1].sequence_id
            return PreemptionPlan((Preemption(victim, PreemptionMode.RECOMPUTE, 0, 1, 0, 0.0),))

        monkeypatch.setattr(VictimChooser, "for_growth", last_admitted)
        assert ours < load().runner.computed_tokens

    def test_the_batch_is_full_again_a_few_steps_after_the_pressure(self) -> None:
        harness = EngineHarness(blocks=40, load_line=1.0, max_running_sequences=8)
        steady = [spec_of(i, prompt(i, 30), max_tokens=200) for i in range(4)]
        burst = [spec_of(100 + i, prompt(i, 60), max_tokens=40) for i in range(4)]
        harness.core.submit(steady)
        for _ in range(4):
            harness.step()
        harness.core.submit(burst)
        harness.run_until(lambda: harness.ended(*(spec.sequence_id for spec in burst)))
        assert harness.preemptions
        left = harness.core.stats().running + harness.core.stats().waiting
        assert left >= 2
        for _ in range(4):
            harness.step()
        assert len(harness.step().outputs) == left


def test_figures_are_right_at_once_when_all_are_aborted_and_no_step_follows() -> None:
    harness = EngineHarness(blocks=12, load_line=1.0)
    specs = [spec_of(i, prompt(i, 50), max_tokens=50) for i in range(6)]
    harness.core.submit(specs)
    harness.run_until(lambda: harness.preemptions)
    harness.core.abort([spec.sequence_id for spec in specs])
    stats = harness.core.stats()
    assert (stats.running, stats.waiting, stats.preempted) == (0, 0, 0)
    assert (stats.blocks_held, stats.blocks_reserved) == (0, 0)
    assert stats.blocks_free + stats.blocks_cached == 12


class TestWaiting:
    """What is kept for those that wait."""

    def test_the_hits_of_the_next_in_line_outlast_a_load_of_others(self) -> None:
        def cached_tokens(waits: bool) -> int:
            harness = EngineHarness(blocks=40, load_line=1.0, max_running_sequences=1)
            text = prompt(0, 160)
            harness.core.submit([spec_of(1, text, max_tokens=1)])
            harness.run()
            others = [spec_of(i, prompt(i, 300), max_tokens=2) for i in (2, 3, 4)]
            again = spec_of(9, text, max_tokens=1)
            harness.core.submit([others[0]])
            harness.step()
            harness.core.submit([*others[1:], again] if waits else others[1:])
            harness.run()
            if not waits:
                harness.core.submit([again])
                harness.run()
            return harness.started(9).cached_tokens

        assert cached_tokens(waits=False) == 0
        assert cached_tokens(waits=True) == 144

    def test_one_that_gives_up_waiting_leaves_nothing_kept(self) -> None:
        harness = EngineHarness(blocks=40, max_running_sequences=1)
        text = prompt(0, 160)
        harness.core.submit([spec_of(1, text, max_tokens=1)])
        harness.run()
        harness.core.submit([spec_of(2, prompt(2, 100), max_tokens=9)])
        harness.step()
        harness.core.submit([spec_of(3, text)])
        harness.step()
        assert harness.manager.stats().expected == 9  # never the last token
        harness.core.abort([3])
        assert harness.manager.stats().expected == 0

    def test_hits_are_kept_each_time_it_waits(self) -> None:
        harness = EngineHarness(blocks=40)
        text = prompt(0, 160)
        harness.core.submit([spec_of(1, text, max_tokens=1)])
        harness.run()
        room = WaitingRoom(harness.manager, SequenceTiers(harness.manager.block_tokens))
        sequence = Sequence(spec_of(2, text), order=2)
        for _ in range(2):
            room.add(sequence)
            room.keep_hits()
            assert harness.manager.stats().expected == 9
            room.give_up(sequence)
            assert harness.manager.stats().expected == 0

    def test_a_trimmed_one_that_is_aborted_leaves_nothing_kept(self) -> None:
        harness = EngineHarness(blocks=8, load_line=1.0)
        specs = [spec_of(i, prompt(i, 43 + 7 * i), max_tokens=60) for i in (1, 2)]
        harness.core.submit(specs)
        harness.run_until(lambda: harness.core.stats().trims)
        assert harness.manager.stats().expected > 0
        harness.core.abort([spec.sequence_id for spec in specs])
        assert harness.manager.stats().expected == 0

    def test_an_idle_pool_admits_or_refuses_in_one_step_whatever_was_before(self) -> None:
        harness = EngineHarness(blocks=12, load_line=0.5)
        before = [spec_of(i, prompt(i, 40), max_tokens=80) for i in range(6)]
        harness.core.submit(before)
        harness.run_until(lambda: harness.preemptions)
        harness.core.abort([spec.sequence_id for spec in before])
        whole, larger = spec_of(10, prompt(10, 192), max_tokens=1), spec_of(11, prompt(11, 193))
        harness.core.submit([whole, larger])
        report = harness.step()
        assert [started.sequence_id for started in report.started] == [10]
        assert [refused.sequence_id for refused in report.refused] == [11]
        harness.run()
        say_the_same_as_alone(harness, [whole])


class TestTenants:
    """Shares of the pool, in the engine."""

    def spec(self, number: int, tenant: str, tokens: int, **fields: Any) -> SequenceSpec:
        namespace = tenant.encode()
        return spec_of(number, prompt(number, tokens), tenant=tenant, namespace=namespace, **fields)

    def test_a_tenant_at_its_quota_gets_blocks_from_its_own_only(self) -> None:
        harness = EngineHarness(blocks=20, load_line=1.0, tenant_shares="batch=0-50")
        other = self.spec(1, "", 100, max_tokens=30)
        batch = [self.spec(i, "batch", 70, max_tokens=40) for i in (2, 3)]
        harness.core.submit([other, *batch])
        harness.run()
        assert {victim for _, victim in harness.preemptions} <= {2, 3}
        assert harness.preemptions
        say_the_same_as_alone(harness, [other, *batch])

    def test_a_higher_one_that_lacks_quota_takes_the_place_of_its_own_only(self) -> None:
        harness = EngineHarness(blocks=20, load_line=1.0, tenant_shares="batch=0-50")
        cheap = self.spec(1, "", 17, max_tokens=60)
        low = self.spec(2, "batch", 70, max_tokens=20)
        harness.core.submit([cheap, low])
        for _ in range(3):
            harness.step()
        high = self.spec(3, "batch", 100, max_tokens=3, priority=1)
        harness.core.submit([high])
        report = harness.step()
        assert [started.sequence_id for started in report.started] == [3]
        assert [victim for _, victim in harness.preemptions] == [2]
        harness.run()
        say_the_same_as_alone(harness, [cheap, low, high])

    def test_blocks_that_a_tenant_is_guaranteed_are_not_taken_from_it(self) -> None:
        harness = EngineHarness(blocks=20, load_line=1.0, tenant_shares="calm=50-100")
        # All of its floor, and no more; of a priority that would make it the first victim.
        calm = self.spec(1, "calm", 150, max_tokens=10, priority=-1)
        busy = [self.spec(i, "", 76, max_tokens=40) for i in (2, 3)]
        harness.core.submit([calm, *busy])
        harness.run()
        assert harness.finished(1).preemptions == 0
        assert harness.preemptions
        say_the_same_as_alone(harness, [calm, *busy])

    def test_a_prompt_above_the_quota_is_refused(self) -> None:
        harness = EngineHarness(blocks=20, tenant_shares="batch=0-50")
        harness.core.submit([self.spec(1, "batch", 170)])
        (refused,) = harness.step().refused
        assert (refused.sequence_id, refused.limit_tokens) == (1, 160)

    def test_shares_follow_the_size_of_the_pool(self) -> None:
        harness = EngineHarness(blocks=20, load_line=1.0, tenant_shares="calm=50-100")
        harness.core.resize(Resize(1, 8, ShrinkPolicy.WAIT, 10.0))
        harness.step()
        assert harness.resized[0].num_blocks == 8
        assert harness.manager.tenant_stats("calm").floor_blocks == 4
        harness.core.resize(Resize(2, 20, ShrinkPolicy.WAIT, 10.0))
        harness.step()
        assert harness.manager.tenant_stats("calm").floor_blocks == 10
