"""Live resize: the pool grows and shrinks while requests run, and no token changes."""

from __future__ import annotations

import numpy as np
import pytest
from engine_fakes import spec_of
from resize_harness import BLOCK_TOKENS, PREEMPT, WAIT, ResizeHarness, prompt

from kvcache import Admission, AdmissionRequest
from service.engine.messages import (
    FinishReason,
    MemoryShortage,
    Resized,
    SequenceSpec,
    ShrinkPolicy,
)


def load_of_64() -> list[SequenceSpec]:
    """Half of them share a prefix; most grow by more than they began with."""
    prefix = prompt(1000, 16)
    return [
        spec_of(
            i,
            prompt=[*(prefix if i % 2 else []), *prompt(i, 5 + i % 13)],
            max_tokens=20 + i % 17,
            priority=i % 3,
        )
        for i in range(64)
    ]


@pytest.mark.parametrize(
    ("at_step", "policy", "chunk_blocks"),
    [
        (2, WAIT, 50),
        (15, WAIT, 10_000),
        (2, PREEMPT, 50),
        (6, PREEMPT, 10_000),
        (15, PREEMPT, 50),
        (15, PREEMPT, 10_000),
    ],
)
def test_shrinking_a_loaded_pool_by_half_while_64_requests_run_changes_no_token(
    monkeypatch: pytest.MonkeyPatch, at_step: int, policy: ShrinkPolicy, chunk_blocks: int
) -> None:
    monkeypatch.setattr("service.engine.resize.CHUNK_BYTES", chunk_blocks * 8 * BLOCK_TOKENS)
    harness = ResizeHarness(blocks=720, max_step_tokens=2048)
    harness.submit(*load_of_64())
    for _ in range(at_step):
        harness.step()
    stats = harness.core.stats()
    assert stats.running == 64
    assert at_step < 15 or stats.blocks_held > 360
    shrink = harness.resize(360, policy)
    while not harness.resized:
        harness.step()
    assert harness.end_of(shrink).num_blocks == 360
    if policy is WAIT:
        assert harness.end_of(shrink).preempted == 0
    elif at_step == 15:
        assert harness.end_of(shrink).preempted > 0
    for _ in range(3):
        harness.step()
    grow = harness.resize(720, policy)
    harness.run()
    assert harness.end_of(grow) == Resized(
        grow, 360, 720, 720, 0, harness.end_of(grow).elapsed_seconds, None
    )
    harness.assert_undisturbed()
    assert {harness.finished(i).reason for i in range(64)} == {FinishReason.MAX_TOKENS}


def test_admission_counts_with_the_new_size_at_once() -> None:
    harness = ResizeHarness(blocks=40)
    harness.submit(
        spec_of(1, prompt(1, 44), max_tokens=12), spec_of(2, prompt(2, 8), max_tokens=40)
    )
    harness.step()
    began_seconds = harness.now_seconds
    shrink = harness.resize(12, WAIT)
    small, large = spec_of(3, prompt(3, 4), max_tokens=3), spec_of(4, prompt(4, 52))
    harness.submit(small, large)
    while 1 not in {f.sequence_id for r in harness.reports for f in r.finished}:
        report = harness.step()
        assert not report.started, "there are free blocks, but none that will be left"
        assert not report.refused, "the new size is not in force"
    assert [s.sequence_id for s in harness.step().started] == [3]
    end = harness.end_of(shrink)
    assert (end.before_blocks, end.num_blocks, end.preempted) == (40, 12, 0)
    assert end.elapsed_seconds == 12.0 == harness.now_seconds - began_seconds
    assert [r.sequence_id for r in harness.reports[-1].refused] == [4]
    harness.run()
    del harness.specs[4]
    harness.assert_undisturbed()
    assert harness.preemptions == []


@pytest.mark.parametrize("chunk_blocks", [1, 10_000])
def test_a_long_way_to_the_new_size_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, chunk_blocks: int
) -> None:
    monkeypatch.setattr("service.engine.resize.CHUNK_BYTES", chunk_blocks * 8 * BLOCK_TOKENS)
    harness = ResizeHarness(blocks=200)
    harness.submit(spec_of(1, prompt(1, 20), max_tokens=30))
    harness.step()
    harness.resize(40)
    harness.submit(spec_of(2, prompt(2, 20), max_tokens=3), spec_of(3, prompt(3, 120)))
    started = [s.sequence_id for s in harness.step().started]
    assert started == [2], "30 blocks more are not left of 40, whatever is there on the way"
    harness.run()
    harness.assert_undisturbed()


def test_an_idle_pool_on_its_way_takes_nobody_who_will_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.engine.resize.CHUNK_BYTES", 8 * BLOCK_TOKENS)
    harness = ResizeHarness(blocks=40)
    harness.resize(20)
    harness.submit(spec_of(1, prompt(1, 81)), spec_of(2, prompt(2, 30), max_tokens=4))
    harness.run()
    assert [r.sequence_id for report in harness.reports for r in report.refused] == [1]
    assert harness.output(2) == harness.oracle(harness.specs[2])


def test_at_the_deadline_the_answer_is_what_is_in_force() -> None:
    harness = ResizeHarness(blocks=20)
    harness.submit(spec_of(1, prompt(1, 40), max_tokens=30))
    harness.step()
    shrink = harness.resize(5, WAIT, limit_seconds=3.0)
    harness.submit(spec_of(2, prompt(2, 4), max_tokens=3))
    while not harness.resized:
        harness.step()
    end = harness.end_of(shrink)
    assert (end.num_blocks, end.elapsed_seconds) == (20, 3.0)
    harness.run()
    assert harness.core.stats().blocks_total == 20, "it does not go on behind the caller's back"
    harness.assert_undisturbed()


def test_the_lowest_priority_gives_way() -> None:
    harness = ResizeHarness(blocks=40)
    harness.submit(*(spec_of(i, prompt(i, 30), max_tokens=20, priority=-i) for i in range(4)))
    harness.step()
    harness.resize(20)
    harness.step()
    assert {victim for _, victim in harness.preemptions} == {2, 3}
    harness.run()
    harness.assert_undisturbed()


def test_a_lone_request_gives_way_too_and_comes_back() -> None:
    harness = ResizeHarness(blocks=40)
    other = spec_of(1, prompt(1, 60), max_tokens=10)
    harness.submit(other)
    harness.step()
    harness.core.abort([1])
    harness.step()
    harness.submit(spec_of(2, prompt(2, 40), max_tokens=20))
    for _ in range(3):
        harness.step()
    shrink = harness.resize(15)
    harness.run()
    assert harness.end_of(shrink).num_blocks == 15
    assert harness.output(2) == harness.oracle(harness.specs[2])


class TestLimitsFollow:
    """What can never run in the new pool is answered, with the figures of the new pool."""

    def test_waiting_ones_are_refused_at_once(self) -> None:
        harness = ResizeHarness(blocks=20, max_running_sequences=1)
        harness.submit(
            spec_of(1, prompt(1, 20), max_tokens=30),
            spec_of(2, prompt(2, 44)),
            spec_of(3, prompt(3, 20), max_tokens=2),
            spec_of(4, prompt(4, 48)),
        )
        harness.step()
        harness.resize(10)
        refused = harness.step().refused
        assert [
            (r.sequence_id, r.needed_blocks, r.total_blocks, r.limit_tokens) for r in refused
        ] == [
            (2, 11, 10, 40),
            (4, 12, 10, 40),
        ]
        harness.run()
        for sequence_id in (1, 3):
            assert harness.output(sequence_id) == harness.oracle(harness.specs[sequence_id])[:21]

    def test_a_running_one_ends_as_evicted_with_what_it_has_said(self) -> None:
        harness = ResizeHarness(blocks=20)
        spec = spec_of(1, prompt(1, 40), max_tokens=30)
        harness.submit(spec)
        for _ in range(5):
            harness.step()
        harness.resize(5)
        harness.run()
        assert harness.finished(1).reason is FinishReason.EVICTED
        assert harness.output(1) == harness.oracle(spec)[:5]
        assert harness.core.stats().blocks_held == 0

    def test_what_was_too_large_fits_a_larger_pool(self) -> None:
        harness = ResizeHarness(blocks=10, max_blocks=20)
        harness.submit(spec_of(1, prompt(1, 44), max_tokens=2))
        assert len(harness.step().refused) == 1
        harness.resize(20)
        harness.specs.clear()
        harness.submit(spec_of(2, prompt(1, 44), max_tokens=2))
        harness.run()
        harness.assert_undisturbed()

    def test_headroom_above_the_load_line_is_that_of_the_new_size(self) -> None:
        harness = ResizeHarness(blocks=40, load_line=0.5)
        harness.resize(20)
        harness.submit(*(spec_of(i, prompt(i, 18), max_tokens=9) for i in range(4)))
        harness.step()
        assert harness.core.stats().running == 2
        harness.run()
        harness.assert_undisturbed()


def test_those_who_wait_for_blocks_start_when_the_pool_has_grown() -> None:
    harness = ResizeHarness(blocks=10, max_blocks=100)
    harness.submit(*(spec_of(i, prompt(i, 30), max_tokens=50) for i in range(4)))
    harness.step()
    assert harness.core.stats().running == 1
    harness.resize(100)
    harness.step()
    assert harness.core.stats().running == 4
    harness.run()
    harness.assert_undisturbed()


def test_growing_asks_nobody_who_waits_far_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a larger pool nobody new is too large, so a step costs what it costs anyway."""
    harness = ResizeHarness(blocks=10, max_blocks=20)
    harness.submit(*(spec_of(i, prompt(i, 8 * BLOCK_TOKENS), max_tokens=9) for i in range(200)))
    harness.step()
    asked: list[int] = []
    admit = harness.manager.admit

    def noted(request: AdmissionRequest) -> Admission:
        asked.append(request.sequence_id)
        return admit(request)

    monkeypatch.setattr(harness.manager, "admit", noted)
    harness.resize(12)
    harness.step()
    assert harness.manager.usable_blocks == 12
    assert 0 < len(asked) < 100
    harness.core.abort(range(200))
    harness.run()


def test_a_pool_grows_no_further_than_was_reserved() -> None:
    harness = ResizeHarness(blocks=10, max_blocks=30)
    grow = harness.resize(31)
    harness.run()
    assert harness.end_of(grow).num_blocks == 30


def test_a_pool_that_cannot_grow_for_lack_of_memory_says_so_and_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = ResizeHarness(blocks=10, max_blocks=10_000)
    harness.submit(spec_of(1, prompt(1, 30), max_tokens=50))
    harness.step()
    monkeypatch.setattr(harness.runner.arena, "_available_bytes", lambda: 200_000_000)
    monkeypatch.setattr("kvcache.arena.HEADROOM_BYTES", 199_900_000)
    grow = harness.resize(9_999)
    harness.step()
    end = harness.end_of(grow)
    assert end.num_blocks == 10
    assert end.shortage == MemoryShortage(78 * 4096, 200_000_000, 199_900_000)
    harness.core.abort([1])
    harness.run()


def test_growth_keeps_the_chunks_that_had_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else took the rest after the order had come."""
    monkeypatch.setattr("service.engine.resize.CHUNK_BYTES", 512 * 8 * BLOCK_TOKENS)
    harness = ResizeHarness(blocks=10, max_blocks=10_000)
    left = iter([1 << 40] * 3)
    monkeypatch.setattr(harness.runner.arena, "_available_bytes", lambda: next(left, 0))
    grow = harness.resize(9_999)
    harness.run()
    end = harness.end_of(grow)
    assert end.num_blocks == 10 + 2 * 512
    assert end.shortage is not None


def test_a_second_order_ends_the_first_with_what_is_in_force() -> None:
    harness = ResizeHarness(blocks=20)
    harness.submit(spec_of(1, prompt(1, 40), max_tokens=30))
    harness.step()
    first = harness.resize(5, WAIT)
    harness.step()
    second = harness.resize(20, WAIT)
    harness.run()
    assert [end.call_id for end in harness.resized] == [first, second]
    assert [end.num_blocks for end in harness.resized] == [20, 20]
    harness.assert_undisturbed()


def test_an_idle_pool_shrinks_without_work() -> None:
    harness = ResizeHarness(blocks=20)
    shrink = harness.resize(3, WAIT)
    assert not harness.core.has_work
    harness.step()
    assert harness.end_of(shrink) == Resized(
        shrink, 20, 3, 3, 0, harness.resized[0].elapsed_seconds, None
    )
    assert not harness.core.is_resizing


def test_what_is_cached_and_stays_is_hit_and_what_went_is_a_miss() -> None:
    """A block that comes back with a larger pool has no identity of before."""
    harness = ResizeHarness(blocks=60)
    harness.submit(*(spec_of(i, prompt(i, 30), max_tokens=10) for i in range(5)))
    harness.run()
    assert harness.core.stats().blocks_cached > 40
    harness.resize(20)
    harness.run()
    kept = {i: harness.core.lookup(b"", prompt(i, 30)) for i in range(5)}
    assert 0 < sum(kept.values()) <= 20 * BLOCK_TOKENS
    assert 0 in kept.values()
    harness.resize(60)
    harness.run()
    assert {i: harness.core.lookup(b"", prompt(i, 30)) for i in range(5)} == kept
    harness.submit(*(spec_of(10 + i, prompt(i, 30), max_tokens=10) for i in range(5)))
    harness.run()
    for i in range(5):
        again = harness.started(10 + i).cached_tokens  # perhaps with a part of a block, copied
        assert kept[i] <= again < kept[i] + BLOCK_TOKENS
    harness.assert_undisturbed()


def test_a_pin_in_the_way_is_waited_for_and_nobody_calls_it_a_standstill() -> None:
    harness = ResizeHarness(blocks=20, tenant_shares="bounded=0-50")
    harness.submit(spec_of(1, prompt(1, 48), max_tokens=2))
    harness.run()
    pin = harness.manager.pin(b"", np.array(prompt(1, 48), np.int32), seconds=1e6)
    assert pin.tokens == 48
    shrink = harness.resize(10, PREEMPT)
    harness.submit(spec_of(2, prompt(2, 36), max_tokens=2))
    for _ in range(10):
        harness.step()
    assert harness.core.is_resizing
    assert harness.core.stats().running == 0
    assert harness.core.stats().blocks_total == 20
    assert harness.manager.tenant_stats("bounded").quota_blocks == 10
    harness.manager.unpin(pin.pin_id)
    harness.run()
    assert harness.end_of(shrink).num_blocks == 10
    harness.assert_undisturbed()


def test_shares_of_tenants_are_those_of_the_present_size() -> None:
    harness = ResizeHarness(blocks=40, tenant_shares="guarded=50-100, bounded=0-50")

    def shares() -> tuple[int, int | None]:
        manager = harness.manager
        guarded, bounded = manager.tenant_stats("guarded"), manager.tenant_stats("bounded")
        return guarded.floor_blocks, bounded.quota_blocks

    assert shares() == (20, 20)
    harness.submit(spec_of(1, prompt(1, 68), max_tokens=8, tenant="bounded"))
    harness.step()
    harness.resize(16, WAIT)
    harness.step()
    assert shares() == (20, 20), "whoever is waited for keeps what it may have"
    harness.run()
    assert shares() == (8, 8)
    harness.assert_undisturbed()
    assert harness.preemptions == []
    harness.resize(40)
    harness.run()
    assert shares() == (20, 20)
