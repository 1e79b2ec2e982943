"""EngineCore with the hash model: tokens, ends, aborts, resumption after an engine death."""

from __future__ import annotations

import pytest
from engine_fakes import EngineHarness, spec_of

from service.engine.live_sequences import DuplicateSequence
from service.engine.messages import FinishReason, Refused, SamplingParams

SEEDED = SamplingParams(temperature=1.0, top_p=0.9, seed=1234)


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0), SEEDED])
def test_output_is_that_of_the_model_alone(sampling: SamplingParams) -> None:
    harness = EngineHarness()
    specs = [spec_of(i, prompt=range(i, 40 + 3 * i), sampling=sampling) for i in range(5)]
    harness.core.submit(specs)
    harness.run()
    for spec in specs:
        assert harness.output(spec.sequence_id) == harness.oracle(spec)


@pytest.mark.parametrize("chunk_tokens", [1, 2, 15, 16, 17, 63, 64])
def test_chunk_size_of_the_prefill_changes_nothing(chunk_tokens: int) -> None:
    harness = EngineHarness(prefill_chunk_tokens=chunk_tokens)
    spec = spec_of(1, prompt=range(100), max_tokens=6)
    harness.core.submit([spec])
    harness.run()
    assert harness.output(1) == harness.oracle(spec)
    assert len(harness.reports) == -(-100 // chunk_tokens) + 5


def test_decode_goes_on_in_every_step_of_a_long_prefill() -> None:
    harness = EngineHarness(max_step_tokens=17, prefill_chunk_tokens=64)
    harness.core.submit([spec_of(1, prompt=[1, 2], max_tokens=30)])
    harness.step()
    harness.core.submit([spec_of(2, prompt=range(160), max_tokens=1)])
    for _ in range(10):
        report = harness.step()
        assert 1 in {output.sequence_id for output in report.outputs}
        assert [len(b.token_ids) for b in harness.runner.batches[-1:]] == [17]
    assert harness.finished(2).reason is FinishReason.MAX_TOKENS


def test_a_batch_full_of_decodes_leaves_a_token_for_prefill() -> None:
    harness = EngineHarness(max_running_sequences=64, max_step_tokens=4)
    harness.core.submit([spec_of(i, prompt=[i], max_tokens=40) for i in range(10)])
    harness.run()
    for i in range(10):
        assert len(harness.output(i)) == 40


def test_prompt_of_sixty_percent_of_the_context_stops_at_the_limit() -> None:
    harness = EngineHarness(max_context_tokens=100)
    harness.core.submit([spec_of(1, prompt=range(60), max_tokens=10**9)])
    harness.run()
    assert harness.finished(1).reason is FinishReason.CONTEXT_LENGTH
    assert len(harness.output(1)) == 40


def test_max_tokens_that_meet_the_context_limit_are_max_tokens() -> None:
    harness = EngineHarness(max_context_tokens=100)
    harness.core.submit([spec_of(1, prompt=range(60), max_tokens=40)])
    harness.run()
    assert harness.finished(1).reason is FinishReason.MAX_TOKENS


def test_stop_id_ends_the_sequence_and_is_in_the_output() -> None:
    harness = EngineHarness()
    expected = harness.oracle(spec_of(1, prompt=range(20), max_tokens=10))
    harness.core.submit(
        [
            spec_of(1, prompt=range(20), max_tokens=10, stop_ids=(expected[4],)),
            spec_of(2, prompt=range(20), max_tokens=10, eos_ids=(expected[2],)),
        ]
    )
    harness.run()
    assert harness.output(1) == expected[:5]
    assert harness.finished(1).reason is FinishReason.STOP
    assert harness.finished(1).stop_token_id == expected[4]
    assert harness.output(2) == expected[:3]
    assert harness.finished(2).reason is FinishReason.EOS


def test_min_tokens_keep_end_of_sequence_out_of_reach() -> None:
    harness = EngineHarness()
    first = harness.oracle(spec_of(1, prompt=range(20), max_tokens=1))[0]
    spec = spec_of(1, prompt=range(20), max_tokens=10, eos_ids=(first,), min_tokens=4)
    harness.core.submit([spec])
    harness.run()
    assert first not in harness.output(1)[:4]
    assert harness.output(1) == harness.oracle(spec)


def test_a_sequence_is_scheduled_when_a_step_admits_it() -> None:
    harness = EngineHarness(prefill_chunk_tokens=10, max_running_sequences=1)
    harness.core.submit([spec_of(1, prompt=range(30), max_tokens=3), spec_of(2, prompt=[1])])
    harness.run()
    began = 101.0  # the first step; every step is a second
    assert harness.started(1).scheduled_seconds == began
    assert harness.output_steps(1) == [2, 3, 4]
    assert harness.started(2).scheduled_seconds == began + 5


@pytest.mark.parametrize("sent", [1, 7, 16, 29])
@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.0, presence_penalty=1), SEEDED])
def test_after_an_engine_death_the_output_goes_on_where_it_was(
    sent: int, sampling: SamplingParams
) -> None:
    harness = EngineHarness()
    whole = harness.oracle(spec_of(1, prompt=range(20), max_tokens=30, sampling=sampling))
    resumed = spec_of(
        1,
        prompt=range(20),
        max_tokens=30,
        sampling=sampling,
        output_ids=whole[:sent],
        resumed=True,
    )
    harness.core.submit([resumed])
    harness.run()
    assert whole[:sent] + harness.output(1) == whole
    assert harness.core.stats().lookup_tokens == 0


def test_sequence_that_was_complete_when_its_engine_died_ends_at_once() -> None:
    harness = EngineHarness()
    harness.core.submit(
        [
            spec_of(1, prompt=[1], max_tokens=3, output_ids=[4, 5, 6], resumed=True),
            spec_of(2, prompt=[1], output_ids=[4, 9], eos_ids=(9,), resumed=True),
        ]
    )
    harness.run()
    assert harness.finished(1).reason is FinishReason.MAX_TOKENS
    assert harness.finished(2).reason is FinishReason.EOS
    assert harness.output(1) == harness.output(2) == []
    assert harness.runner.computed_tokens == 0


def test_prompt_as_long_as_the_context_is_refused_with_the_limit() -> None:
    harness = EngineHarness(max_context_tokens=64)
    harness.core.submit([spec_of(1, prompt=range(64)), spec_of(2, prompt=range(63))])
    harness.run()
    (refused,) = (r for report in harness.reports for r in report.refused)
    assert refused == Refused(1, needed_blocks=4, total_blocks=256, limit_tokens=63)
    assert len(harness.output(2)) == 1


def test_submitting_a_live_id_again_is_a_defect() -> None:
    harness = EngineHarness()
    harness.core.submit([spec_of(1, prompt=[1])])
    with pytest.raises(DuplicateSequence):
        harness.core.submit([spec_of(1, prompt=[1])])


class TestAbort:
    """In every state: blocks are free at the next step boundary, the second abort is a no-op."""

    def abort_and_check(self, harness: EngineHarness, sequence_id: int) -> None:
        harness.core.abort([sequence_id, 999])
        harness.core.abort([sequence_id])
        assert harness.manager.stats().held == 0
        assert harness.core.has_work
        assert harness.step().stats.blocks_held == 0
        assert harness.finished(sequence_id).reason is FinishReason.CANCELLED
        assert not harness.core.has_work

    def test_waiting(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(1, prompt=range(20))])
        self.abort_and_check(harness, 1)
        assert not any(report.started for report in harness.reports)

    @pytest.mark.parametrize("chunks", [1, 2, 3])
    def test_prefill_after_some_chunks(self, chunks: int) -> None:
        harness = EngineHarness(prefill_chunk_tokens=16)
        harness.core.submit([spec_of(1, prompt=range(100))])
        for _ in range(chunks):
            harness.step()
        self.abort_and_check(harness, 1)

    def test_decode(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(1, prompt=range(20))])
        harness.step()
        harness.step()
        self.abort_and_check(harness, 1)

    def test_deferred_behind_the_same_prefix(self) -> None:
        harness = EngineHarness(prefill_chunk_tokens=16)
        harness.core.submit([spec_of(1, prompt=range(100)), spec_of(2, prompt=range(100))])
        harness.step()
        harness.core.abort([1])
        self.abort_and_check(harness, 2)

    def test_the_one_that_others_are_deferred_behind(self) -> None:
        harness = EngineHarness(prefill_chunk_tokens=16)
        waiting = spec_of(2, prompt=range(100), max_tokens=4)
        harness.core.submit([spec_of(1, prompt=range(100)), waiting])
        harness.step()
        harness.core.abort([1])
        harness.run()
        assert harness.output(2) == harness.oracle(waiting)

    def test_preempted(self) -> None:
        harness = EngineHarness(blocks=5, load_line=1.0)
        harness.core.submit([spec_of(i, prompt=range(i, i + 30), max_tokens=50) for i in (1, 2)])
        while not harness.core.stats().preempted:
            harness.step()
        harness.core.abort([1])
        self.abort_and_check(harness, 2)
        assert {harness.finished(i).preemptions for i in (1, 2)} == {0, 1}

    def test_finished(self) -> None:
        harness = EngineHarness()
        harness.core.submit([spec_of(1, prompt=[1], max_tokens=1)])
        harness.run()
        harness.core.abort([1])
        assert not harness.core.has_work

    def test_one_of_two_leaves_the_other_untouched(self) -> None:
        harness = EngineHarness()
        other = spec_of(2, prompt=range(50))
        harness.core.submit([spec_of(1, prompt=range(50)), other])
        harness.step()
        harness.step()
        harness.core.abort([1])
        harness.run()
        assert harness.output(2) == harness.oracle(other)


def test_figures_are_right_while_nothing_runs() -> None:
    harness = EngineHarness(blocks=10)
    harness.core.submit([spec_of(1, prompt=range(40), max_tokens=5)])
    harness.run()
    stats = harness.core.stats()
    assert (stats.running, stats.waiting, stats.preempted) == (0, 0, 0)
    assert (stats.blocks_held, stats.blocks_cached, stats.blocks_free) == (0, 2, 8)
    assert (stats.prefill_tokens, stats.decode_tokens, stats.steps) == (40, 5, 5)
    assert stats.last_step_seconds == harness.now_seconds
    harness.core.flush(None)
    assert harness.core.stats().blocks_free == 10
