"""What the engine tells of sequences that lose their blocks and come back, and what that costs."""

from __future__ import annotations

import pytest
from engine_fakes import EngineHarness, spec_of
from resize_harness import ResizeHarness, prompt

from service.engine.figures import PreemptionMode, PreemptionReason
from service.engine.messages import Preempted, Readmitted, SequenceSpec

TRIM, _, RECOMPUTE = PreemptionMode
KV_FULL, PRIORITY, POOL_SHRUNK, OOM = PreemptionReason


def losses(harness: EngineHarness) -> list[Preempted]:
    moves = (move for report in harness.reports for move in report.moves)
    return [move for move in moves if isinstance(move, Preempted)]


def returns(harness: EngineHarness) -> list[Readmitted]:
    moves = (move for report in harness.reports for move in report.moves)
    return [move for move in moves if isinstance(move, Readmitted)]


def reasons(harness: EngineHarness) -> set[PreemptionReason]:
    return {loss.reason for loss in losses(harness)}


class TestReasons:
    """Each way to lose blocks has its own."""

    def test_blocks_have_run_out(self) -> None:
        harness = EngineHarness(blocks=12, load_line=1.0)
        harness.core.submit([spec_of(i, prompt(i, 60), max_tokens=60) for i in (1, 2)])
        harness.run()
        assert reasons(harness) == {KV_FULL}
        harness.assert_moves_are_told()

    def test_somebody_ranks_higher(self) -> None:
        harness = EngineHarness(max_running_sequences=1)
        harness.core.submit([spec_of(1, prompt(1, 20), max_tokens=30)])
        harness.step()
        harness.core.submit([spec_of(2, prompt(2, 20), max_tokens=3, priority=1)])
        report = harness.step()
        (loss,) = report.moves
        assert isinstance(loss, Preempted)
        assert (loss.sequence_id, loss.reason) == (1, PRIORITY)
        assert loss.at_seconds == harness.now_seconds
        harness.run()
        (entry,) = returns(harness)
        assert entry.at_seconds - loss.at_seconds == harness.finished(1).preempted_seconds
        harness.assert_moves_are_told()

    def test_the_pool_has_become_smaller(self) -> None:
        harness = ResizeHarness(blocks=40)
        harness.submit(*(spec_of(i, prompt(i, 30), max_tokens=20) for i in range(4)))
        harness.step()
        harness.resize(20)
        harness.run()
        (loss, *_) = losses(harness)
        assert loss.reason is POOL_SHRUNK
        assert reasons(harness) <= {POOL_SHRUNK, KV_FULL}  # it is tight from then on
        harness.assert_moves_are_told()

    def test_a_step_found_no_memory(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(i, [i] * 20, max_tokens=8) for i in range(1, 6)])
        harness.fails_step = frozenset(range(3, 9)).__contains__
        harness.run()
        told = [loss.reason for loss in losses(harness)]
        assert told.count(OOM) >= 4  # all but one
        assert set(told) <= {OOM, POOL_SHRUNK}
        harness.assert_moves_are_told()

    def test_an_end_while_it_waits_is_no_return(self) -> None:
        harness = EngineHarness(max_running_sequences=1)
        harness.core.submit([spec_of(1, prompt(1, 20), max_tokens=30)])
        harness.step()
        harness.core.submit([spec_of(2, prompt(2, 20), max_tokens=3, priority=1)])
        harness.step()
        harness.core.abort([1])
        harness.run()
        assert len(losses(harness)) == 1
        assert returns(harness) == []


class TestLostTokens:
    """What is told to be lost is what has to be computed again, or loaded."""

    @pytest.mark.parametrize("chunk_tokens", [7, 512])
    def test_without_a_cache_all_of_it_is_computed_again(self, chunk_tokens: int) -> None:
        harness = EngineHarness(blocks=20, load_line=1.0, prefill_chunk_tokens=chunk_tokens)
        specs = [
            spec_of(
                *(i, prompt(i, 20 + 5 * i), 40),
                priority=i % 3,
                use_prefix_cache=False,
                publish_blocks=False,
            )
            for i in range(9)
        ]
        for spec in specs:
            harness.core.submit([spec])
            harness.step()
        harness.run()
        assert {KV_FULL, PRIORITY} <= reasons(harness)
        assert all(entry.cached_tokens == 0 for entry in returns(harness))
        for spec in specs:
            lost = [x.lost_tokens for x in losses(harness) if x.sequence_id == spec.sequence_id]
            assert sum(lost) == harness.finished(spec.sequence_id).recomputed_tokens
        harness.assert_moves_are_told()

    def test_a_return_tells_what_the_cache_had_kept(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(i, prompt(i, 50), max_tokens=30) for i in (1, 2)])
        harness.run_until(lambda: len(harness.output(2)) == 5)
        failed = len(harness.runner.batches)
        harness.fails_step = frozenset(range(failed, failed + 6)).__contains__
        harness.run()
        (loss,) = (loss for loss in losses(harness) if loss.reason is OOM)
        (entry,) = returns(harness)
        assert loss.mode is RECOMPUTE
        assert loss.lost_tokens == 54  # its newest token was not computed yet
        assert entry.cached_tokens == 48  # three blocks, which nobody took
        assert harness.finished(loss.sequence_id).recomputed_tokens == 54 - 48

    def test_a_trim_loses_the_tail_alone(self) -> None:
        harness = EngineHarness(max_running_sequences=1)
        harness.core.submit([spec_of(1, prompt(1, 50), max_tokens=30)])
        harness.run_until(lambda: len(harness.output(1)) == 5)
        harness.core.submit([spec_of(2, prompt(2, 20), max_tokens=3, priority=1)])
        harness.run()
        (loss,), (entry,) = losses(harness), returns(harness)
        assert loss.mode is TRIM
        assert (loss.lost_tokens, entry.cached_tokens) == (6, 48)
        assert harness.finished(1).recomputed_tokens == 6


def test_chunks_tell_what_is_computed_of_a_prompt_and_of_what_was_lost() -> None:
    harness = EngineHarness(max_running_sequences=1, prefill_chunk_tokens=16, max_step_tokens=16)
    low = spec_of(1, prompt(1, 40), max_tokens=9, use_prefix_cache=False)
    harness.core.submit([low])
    harness.run_until(lambda: len(harness.output(1)) == 3)
    harness.core.submit([spec_of(2, prompt(2, 10), max_tokens=2, priority=1)])
    harness.run()
    chunks = [chunk for report in harness.reports for chunk in report.prefilled]
    # The prompt, and then it again with the three tokens of output.
    assert [c.tokens for c in chunks if c.sequence_id == 1] == [16, 16, 8, 16, 16, 11]
    assert [c.tokens for c in chunks if c.sequence_id == 2] == [10]


def test_a_failed_step_tells_no_chunk() -> None:
    harness = EngineHarness()
    harness.core.submit([spec_of(1, prompt(1, 20), max_tokens=2)])
    harness.fails_step = frozenset({0}).__contains__
    assert harness.step().prefilled == []
    harness.run()
    assert sum(c.tokens for report in harness.reports for c in report.prefilled) == 20


class TestFigures:
    """Of what the pool holds, and for whom."""

    def specs(self) -> list[SequenceSpec]:
        return [
            spec_of(1, prompt(1, 33), max_tokens=9, tenant="a"),
            spec_of(2, prompt(2, 16), max_tokens=9, tenant="a"),
            spec_of(3, prompt(3, 5), max_tokens=9, tenant="b"),
        ]

    def test_blocks_are_told_by_tenant(self) -> None:
        harness = EngineHarness()
        harness.core.submit(self.specs())
        stats = harness.step().stats
        assert stats.tenant_blocks == {"a": 3 + 1, "b": 1}
        while stats.running:  # nothing is shared here
            assert sum(stats.tenant_blocks.values()) == stats.blocks_held
            stats = harness.step().stats
        harness.run()
        assert harness.core.stats().tenant_blocks == {}

    def test_slack_is_what_the_last_blocks_have_left(self) -> None:
        harness = EngineHarness()
        harness.core.submit(self.specs())
        harness.step()
        manager = harness.manager.stats()
        assert harness.core.stats().slack_tokens == manager.slack_tokens > 0

    def test_cached_blocks_are_free_in_the_low_of_a_minute(self) -> None:
        harness = EngineHarness(blocks=20)
        harness.core.submit([spec_of(1, prompt(1, 80), max_tokens=2)])
        harness.run()
        for _ in range(70):  # seconds, until what it held is out of the window
            harness.now_seconds += 1.0
            harness.core.rest()
        stats = harness.core.stats()
        assert stats.blocks_cached > 0
        assert stats.vitals is not None
        assert stats.vitals.kv_free_low_blocks == 20
