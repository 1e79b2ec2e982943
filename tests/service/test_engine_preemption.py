"""Who gives way to whom in the engine, what that costs, and that it comes to an end."""

from __future__ import annotations

import numpy as np
import pytest
from engine_fakes import EngineHarness, spec_of

from kvcache.preemption import Preemption, PreemptionMode, PreemptionPlan
from service.engine.messages import FinishReason, SequenceSpec
from service.engine.request import Sequence
from service.engine.victims import VictimChooser


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
        harness = EngineHarness(max_running_sequences=1, max_step_tokens=32)
        low = spec_of(1, prompt(1, 200), max_tokens=4)
        harness.core.submit([low])
        harness.step()
        high = spec_of(2, prompt(2, 31), max_tokens=4, priority=1)
        harness.core.submit([high])
        harness.step()  # the budget is spent on the prefill of 1 before 2 comes to its turn
        report = harness.step()
        computed = [len(batch.token_ids) for batch in harness.runner.batches]
        assert max(computed) <= 32
        harness.run()
        assert harness.finished(1).preemptions <= 1
        assert report.stats.steps == 3
        say_the_same_as_alone(harness, [low, high])

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
        while not any(finished.sequence_id == 2 for finished in harness.step().finished):
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
        say_the_same_as_alone(harness, [*low, *high])

    def test_prefill_of_the_higher_goes_first(self) -> None:
        harness = EngineHarness(max_step_tokens=40, prefill_chunk_tokens=32)
        harness.core.submit([spec_of(1, prompt(1, 300)), spec_of(2, prompt(2, 300), priority=1)])
        harness.run()
        assert harness.output_steps(2)[0] < harness.output_steps(1)[0]


class TestCost:
    """What preemption costs in tokens computed again."""

    def thrash_trace(self) -> tuple[EngineHarness, list[SequenceSpec]]:
        """Five long prompts in a pool that holds four of them, all with long outputs."""
        harness = EngineHarness(blocks=4 * 66, max_running_sequences=16)
        specs = [spec_of(i, prompt(i, 1000), max_tokens=200) for i in range(5)]
        harness.core.submit(specs)
        return harness, specs

    def test_long_prompts_that_do_not_all_fit_do_not_thrash(self) -> None:
        harness, specs = self.thrash_trace()
        harness.run()
        say_the_same_as_alone(harness, specs)
        useful_tokens = 5 * (1000 + 200 - 1)
        assert useful_tokens / harness.runner.computed_tokens >= 0.9

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
        ended: set[int] = set()
        while not ended.issuperset(spec.sequence_id for spec in burst):
            ended |= {finished.sequence_id for finished in harness.step().finished}
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
    while not harness.preemptions:
        harness.step()
    harness.core.abort([spec.sequence_id for spec in specs])
    stats = harness.core.stats()
    assert (stats.running, stats.waiting, stats.preempted) == (0, 0, 0)
    assert (stats.blocks_held, stats.blocks_reserved) == (0, 0)
    assert stats.blocks_free + stats.blocks_cached == 12
