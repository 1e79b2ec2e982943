"""The engine when the device has no memory for a step, and when it tells memory's figures."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from engine_fakes import EngineHarness, roomy_device, spec_of
from numpy.typing import NDArray

from kvcache.pressure import PressureLevel
from service.device.errors import DeviceLostError, DeviceOutOfMemoryError
from service.device.owner import Owner
from service.engine.figures import OomRung, Vitals
from service.engine.runner import StepBatch

RETRY, SHRINK, REQUEUE, FAIL = OomRung


def failing(harness: EngineHarness, *steps: int) -> None:
    harness.fails_step = frozenset(steps).__contains__


def vitals_of(harness: EngineHarness) -> Vitals:
    vitals = harness.core.stats().vitals
    assert vitals is not None
    return vitals


def rungs(harness: EngineHarness) -> list[OomRung | None]:
    return [incident.rung for incident in harness.incidents]


def pace(
    harness: EngineHarness,
    step_tokens: int = 512,
    prefill_tokens: int = 512,
    admits: bool = True,
) -> None:
    """Fixes the pace, as a governor would that does not change its mind."""
    core = harness.core
    core._scheduler.set_pace(step_tokens, prefill_tokens, admits)
    core._watch.look = lambda _: None  # type: ignore[method-assign]


class TestAFailedStep:
    """It counts as not computed, and is computed again."""

    def test_says_nothing_and_changes_no_output(self) -> None:
        harness = EngineHarness()
        spec = spec_of(1, range(20), max_tokens=10)
        harness.core.submit([spec])
        failing(harness, 0, 4, 5, 8, 10)
        harness.run()
        assert harness.output(1) == harness.oracle(spec)
        assert rungs(harness) == [RETRY] * 5
        assert len(harness.reports) == 5 + 1 + 10  # the prompt in two parts, after the first one

    def test_does_not_take_a_second_slot_for_the_same_token(self) -> None:
        harness = EngineHarness(block_tokens=1, blocks=8)
        spec = spec_of(1, [7], max_tokens=8)  # all of the pool but one block
        harness.core.submit([spec])
        failing(harness, 2, 3, 5)
        harness.run()
        assert harness.output(1) == harness.oracle(spec)

    def test_of_a_sequence_that_starts_tells_its_start_once(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(1, [1], max_tokens=2)])
        failing(harness, 0)
        harness.run()
        assert [len(report.started) for report in harness.reports] == [1, 0, 0]

    def test_holds_none_of_its_tensors_when_the_allocator_lets_go(self) -> None:
        """Else what it holds would not be among what the allocator gives back."""
        harness = EngineHarness(pool_wait_seconds=0.0)
        tensors: list[weakref.ref[Tensor]] = []
        alive: list[bool] = []

        class Tensor:
            pass

        def forward(_: StepBatch) -> NDArray[np.float32]:
            tensor = Tensor()
            tensors.append(weakref.ref(tensor))
            raise DeviceOutOfMemoryError(Owner.ACTIVATIONS, 1, 0, 1)

        release = harness.device.release_cached

        def release_cached() -> int:
            alive.append(tensors[-1]() is not None)
            return release()

        harness.runner.forward = forward  # type: ignore[method-assign]
        harness.device.release_cached = release_cached  # type: ignore[method-assign]
        harness.core.submit([spec_of(1, [1])])
        gc.disable()
        try:
            harness.run()
        finally:
            gc.enable()
        assert alive == [False] * 7


class TestRungs:
    """Each is told first, then taken."""

    def test_facts_of_an_incident(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(1, range(30)), spec_of(2, range(50, 60))])
        failing(harness, 0)
        harness.step()
        (incident,) = harness.incidents
        assert (incident.kind, incident.rung, incident.wanted_bytes) == ("oom", RETRY, 1000)
        assert incident.sequence_ids == [1, 2]
        assert incident.step_tokens == 40
        assert "1000 bytes wanted for activations" in incident.cause
        assert incident.vitals is not None
        assert incident.vitals.rungs == (1, 0, 0, 0)

    def test_the_pool_gives_memory_back_and_takes_it_again(self) -> None:
        harness = EngineHarness(blocks=200, block_tokens=4)  # of 32 bytes each
        harness.core.submit([spec_of(1, range(20), max_tokens=30)])
        failing(harness, 2, 3, 4, 5)
        harness.run_until(lambda: len(harness.incidents) == 4)
        assert rungs(harness) == [RETRY, RETRY, RETRY, SHRINK]
        assert harness.pool_when_told == [200] * 4
        assert harness.manager.usable_blocks == 200 - 40  # 1250 of the 1000 bytes wanted
        assert vitals_of(harness).level is PressureLevel.CRITICAL
        harness.step()
        assert harness.manager.usable_blocks == 200 - 40  # and not all of them at once
        harness.run()
        for _ in range(200):
            harness.step()
        assert harness.manager.usable_blocks == 200
        assert vitals_of(harness).level is PressureLevel.NORMAL

    @pytest.mark.parametrize("running", [1, 2])
    def test_the_pool_keeps_what_the_largest_one_needs(self, running: int) -> None:
        harness = EngineHarness(blocks=24, block_tokens=4, max_running_sequences=running)
        specs = [spec_of(1, range(20), max_tokens=6), spec_of(2, range(100, 150), max_tokens=6)]
        harness.core.submit(specs)
        failing(harness, *range(1, 6))
        harness.run_until(lambda: rungs(harness) == [RETRY, RETRY, RETRY, SHRINK, SHRINK])
        assert harness.manager.usable_blocks == 14  # 50 tokens, and one block to grow
        harness.run()
        for spec in specs:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)

    def test_all_but_the_first_of_the_highest_rank_are_requeued(self) -> None:
        harness = EngineHarness()
        specs = [spec_of(i, [i] * 20, priority=i in (3, 4), max_tokens=8) for i in range(1, 6)]
        harness.core.submit(specs)
        failing(harness, *range(3, 9))
        harness.run_until(lambda: REQUEUE in rungs(harness))
        assert (harness.core.stats().running, harness.core.stats().preempted) == (1, 4)
        harness.run()
        ends = [end.sequence_id for report in harness.reports for end in report.finished]
        assert ends[0] == 3
        for spec in specs:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)

    def test_one_that_does_not_fit_alone_ends_with_the_figures(self) -> None:
        harness = EngineHarness(device=roomy_device(10**6), pool_wait_seconds=0.0)
        specs = [spec_of(i, [i] * 20, max_tokens=8) for i in range(1, 4)]
        harness.core.submit(specs)
        failing(harness, *range(2, 9))
        harness.run()
        assert rungs(harness)[-2:] == [REQUEUE, FAIL]
        (exhausted,) = (e for report in harness.reports for e in report.exhausted)
        assert (exhausted.sequence_id, exhausted.wanted_bytes) == (1, 1000)
        assert exhausted.total_bytes == 10**6
        assert 0 < exhausted.free_bytes < 10**6
        assert harness.output(1) == harness.oracle(specs[0])[: len(harness.output(1))]
        for spec in specs[1:]:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)
        assert harness.manager.stats().held == 0

    def test_before_that_it_waits_for_others_to_give_memory_back(self) -> None:
        harness = EngineHarness(pool_wait_seconds=30.0)
        specs = [spec_of(i, [i] * 20, max_tokens=8) for i in range(1, 4)]
        harness.core.submit(specs)
        failing(harness, *range(2, 22))
        harness.run()
        assert rungs(harness) == [RETRY] * 3 + [SHRINK] * 2 + [REQUEUE] * 15
        for spec in specs:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)

    def test_while_it_waits_it_computes_nothing_and_hears_of_aborts(self) -> None:
        harness = EngineHarness(pool_wait_seconds=30.0)
        harness.core.submit([spec_of(1, [1] * 20), spec_of(2, [2] * 20, max_tokens=2)])
        failing(harness, *range(1, 10))
        harness.run_until(lambda: len(harness.incidents) == 9)
        harness.now_seconds -= 0.9  # of the second that a step lasts
        failed = len(harness.incidents)
        harness.step()
        assert harness.core.stalled_steps == 1
        assert len(harness.incidents) == failed
        harness.core.abort([1])
        assert [end.sequence_id for end in harness.step().finished] == [1]
        harness.run()
        assert harness.finished(2)

    def test_an_abort_between_two_rungs_is_no_failure_of_another(self) -> None:
        harness = EngineHarness()
        specs = [spec_of(i, [i] * 20, max_tokens=8) for i in (1, 2)]
        harness.core.submit(specs)
        failing(harness, *range(2, 8))
        harness.run_until(lambda: REQUEUE in rungs(harness))
        harness.core.abort([1])
        harness.run()
        assert harness.output(2) == harness.oracle(specs[1])


class TestNarrowSteps:
    """Who computes while steps have room for few tokens."""

    @pytest.mark.parametrize("step_tokens", [1, 2, 3, 5])
    def test_all_have_their_turn(self, step_tokens: int) -> None:
        harness = EngineHarness()
        specs = [spec_of(i, [i], max_tokens=12, priority=i % 2) for i in range(1, 8)]
        harness.core.submit(specs)
        harness.step()  # all are in the batch
        pace(harness, step_tokens=step_tokens)
        harness.run()
        turns = -(-len(specs) // step_tokens)
        for spec in specs:
            assert harness.output(spec.sequence_id) == harness.oracle(spec)
            steps = harness.output_steps(spec.sequence_id)[:9]  # then others have ended
            assert max(np.diff(steps)) <= turns
        assert all(len(batch.token_ids) <= step_tokens for batch in harness.runner.batches[1:])

    @pytest.mark.parametrize("step_tokens", [3, 5])
    def test_a_prompt_comes_on_beside_as_many_decodes_as_a_step_has_tokens(
        self, step_tokens: int
    ) -> None:
        harness = EngineHarness(prefill_chunk_tokens=4)
        harness.core.submit([spec_of(i, [i], max_tokens=60) for i in range(1, 6)])
        harness.step()
        late = spec_of(9, range(10), max_tokens=1)
        harness.core.submit([late])
        harness.step()
        assert harness.core.stats().running == 6 - len(harness.output(9))
        pace(harness, step_tokens=step_tokens)
        harness.run_until(lambda: harness.ended(9), max_steps=30)
        assert harness.output(9) == harness.oracle(late)

    def test_growth_costs_nobody_else_before_it_is_ones_turn(self) -> None:
        """A token gets its slot in the step that computes it."""
        harness = EngineHarness(block_tokens=1, blocks=100)
        harness.core.submit([spec_of(i, [i], max_tokens=20) for i in range(1, 9)])
        harness.step()
        pace(harness, step_tokens=2)
        held = harness.core.stats().blocks_held
        harness.step()
        assert harness.core.stats().blocks_held == held + 2


class TestPace:
    """What the governor asks of the scheduler."""

    def test_prefill_is_bounded_beside_decodes(self) -> None:
        harness = EngineHarness(max_step_tokens=64)
        pace(harness, step_tokens=64, prefill_tokens=16)
        harness.core.submit([spec_of(1, [1], max_tokens=30)])
        harness.step()
        harness.core.submit([spec_of(2, range(100), max_tokens=1)])
        harness.run()
        sizes = [len(batch.token_ids) for batch in harness.runner.batches[1:]]
        assert max(sizes) == 17

    def test_who_found_no_room_in_a_narrow_step_enters_a_wider_one(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(i, [i], max_tokens=20) for i in (1, 2)])
        harness.step()
        pace(harness, step_tokens=2)
        harness.core.submit([spec_of(3, [3], max_tokens=20)])
        harness.step()
        assert harness.core.stats().waiting == 1
        pace(harness, step_tokens=3)
        harness.step()
        assert harness.core.stats().waiting == 0

    def test_nobody_is_admitted_while_something_runs(self) -> None:
        harness = EngineHarness()
        pace(harness, admits=False)
        harness.core.submit([spec_of(i, [i], max_tokens=5) for i in (1, 2, 3)])
        while harness.core.has_work:
            harness.step()
            assert harness.core.stats().running <= 1
        assert all(harness.finished(i) for i in (1, 2, 3))


class TestVitals:
    """Figures of the device come with every report, and while nothing runs."""

    def test_they_sum_to_the_device(self) -> None:
        harness = EngineHarness(device=roomy_device(10**6), block_tokens=4, blocks=100)
        harness.core.rest()
        vitals = vitals_of(harness)
        assert vitals.device_total_bytes == 10**6
        used = vitals.weights_bytes + vitals.kv_bytes + vitals.activation_bytes
        used += vitals.graph_bytes + vitals.context_bytes + vitals.other_bytes
        assert used == vitals.device_total_bytes - vitals.device_free_bytes
        assert vitals.kv_bytes == 101 * 32
        assert vitals.pool_ceiling_blocks == vitals.pool_goal_blocks == 100
        assert (vitals.step_tokens, vitals.prefill_tokens, vitals.admits) == (512, 512, True)

    def test_they_follow_others_while_nothing_runs(self) -> None:
        harness = EngineHarness(device=roomy_device(10**8))
        harness.core.rest()
        assert vitals_of(harness).level is PressureLevel.NORMAL
        harness.device.set_foreign(10**8)
        harness.now_seconds += 0.05
        harness.core.rest()
        assert vitals_of(harness).other_bytes == 0  # not yet
        harness.now_seconds += 0.06
        harness.core.rest()
        assert vitals_of(harness).other_bytes > 0.9 * 10**8
        assert vitals_of(harness).level is PressureLevel.CRITICAL

    def test_the_demand_is_that_of_the_largest_step_at_the_present_pace(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(1, range(100), max_tokens=50)])
        harness.step()
        runner = harness.runner
        assert vitals_of(harness).demand_bytes == runner.step_bytes(512, 64, 100)
        failing(harness, 1, 2, 3)
        harness.run_until(lambda: len(harness.incidents) == 3)
        harness.step()
        vitals = vitals_of(harness)
        assert vitals.step_tokens == 1  # half of a half of a step of one token
        assert vitals.demand_bytes == runner.step_bytes(1, 1, 101)
        harness.run()
        harness.now_seconds += 60
        harness.core.rest()
        assert vitals_of(harness).demand_bytes == runner.step_bytes(
            vitals_of(harness).step_tokens, min(vitals_of(harness).step_tokens, 64), 1
        )

    def test_while_nobody_is_admitted_only_those_who_run_want_logits(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(i, range(i, i + 100), max_tokens=50) for i in (1, 2)])
        failing(harness, 0)
        harness.step()
        harness.step()
        vitals = vitals_of(harness)
        assert (vitals.admits, vitals.step_tokens) == (False, 100)
        assert vitals.demand_bytes == harness.runner.step_bytes(100, 2, 100)


def test_last_words_name_the_error_and_who_was_in_the_batch() -> None:
    harness = EngineHarness()
    harness.core.submit([spec_of(1, range(30)), spec_of(2, range(50, 60))])
    harness.step()
    incident = harness.core.last_words(DeviceLostError("a bit fell over"))
    assert (incident.kind, incident.rung) == ("device lost", None)
    assert incident.cause == "DeviceLostError: a bit fell over"
    assert (incident.sequence_ids, incident.step_tokens) == ([1, 2], 40)
    assert incident.vitals == vitals_of(harness)
    assert harness.core.last_words(ValueError("x")).kind == "defect"
