"""CacheManager: what it counts."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from kv_cores import NewManager
from kv_manager_driver import (
    BLUE,
    RED,
    ByteMemory,
    Clock,
    begin,
    request,
    run,
    serve,
    tokens,
)

from kvcache import AdmissionRequest, Histogram, MissReason, PreemptionMode, RecomputeCause

# --- why a lookup missed ---


def test_every_miss_is_counted_with_its_reason(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)

    def reason_of(wanted: AdmissionRequest) -> MissReason | None:
        before = manager.stats().misses
        serve(manager, wanted)
        after = manager.stats().misses
        changed = [reason for reason in MissReason if after[reason] != before[reason]]
        assert len(changed) <= 1
        return changed[0] if changed else None

    assert reason_of(request(1, range(4))) is MissReason.TOO_SHORT
    assert reason_of(request(1, range(12))) is MissReason.DIVERGED
    assert reason_of(request(1, range(12))) is None
    assert reason_of(request(1, range(12), use_cache=False)) is MissReason.DISABLED
    assert reason_of(request(1, range(12), BLUE)) is MissReason.NAMESPACE
    assert reason_of(request(1, [*range(4), *range(50, 58)])) is MissReason.DIVERGED
    serve(manager, request(1, range(200, 232)))  # evicts everything
    assert reason_of(request(1, range(12))) is MissReason.EVICTED
    assert manager.stats().regretted_tokens == 8


# --- figures ---


def test_figures_are_right_at_any_time_without_a_step(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    begin(manager, request(1, range(10)))
    stats = manager.stats()
    assert (stats.total, stats.free, stats.held, stats.cached) == (8, 5, 3, 0)
    assert stats.reserved == 3
    manager.commit(1, 5)
    assert manager.stats().reserved == 1
    manager.release(1)
    stats = manager.stats()
    assert (stats.free, stats.held, stats.cached, stats.reserved) == (7, 0, 1, 0)
    assert stats.live_sequences == 0


# --- what is computed again, and why ---


def test_tokens_computed_again_are_counted_by_cause(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    causes = RecomputeCause
    run(manager, request(1, range(16)))
    manager.preempt(1, keep_blocks=2)
    serve(manager, request(9, range(100, 124)))  # evicts what was not kept
    run(manager, request(1, range(17), resumed=True))
    assert manager.stats().recompute_tokens[causes.TRIM] == 8
    manager.preempt(1, swapped=True)
    run(manager, request(1, range(17), resumed=True))
    assert manager.stats().recompute_tokens[causes.SWAP] == 1, "all but the last, partial block"
    manager.preempt(1)
    manager.flush(RED)
    run(manager, request(1, range(17), resumed=True))
    manager.preempt(1)
    manager.forget(1)
    run(manager, request(1, range(17), resumed=True))
    stats = manager.stats()
    assert dict(stats.recompute_tokens) == {
        causes.TRIM: 8,
        causes.SWAP: 1,
        causes.RECOMPUTE: 0,
        causes.EVICTION: 0,
        causes.FLUSH: 17,
    }
    modes = PreemptionMode
    assert dict(stats.preemptions_by_mode) == {modes.TRIM: 1, modes.SWAP: 1, modes.RECOMPUTE: 2}
    assert stats.preemptions == 4


def test_a_flush_of_another_namespace_is_no_cause(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    begin(manager, request(1, range(16)))
    manager.commit(1, 7)
    manager.preempt(1)
    manager.flush(BLUE)
    run(manager, request(1, range(16), resumed=True))
    assert manager.stats().recompute_tokens[RecomputeCause.RECOMPUTE] == 3
    assert manager.stats().recompute_tokens[RecomputeCause.FLUSH] == 0


def test_a_preemption_is_over_when_its_id_begins_as_another_request(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(10)))
    manager.preempt(1)
    run(manager, request(1, range(100, 110)))
    manager.release(1)
    manager.flush(None)
    run(manager, request(1, range(10), resumed=True))
    assert set(manager.stats().recompute_tokens.values()) == {0}


def test_regret_is_a_cause(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(9)))
    serve(manager, request(2, range(100, 132)))
    serve(manager, request(3, range(9)))
    stats = manager.stats()
    assert stats.regretted_tokens == stats.recompute_tokens[RecomputeCause.EVICTION] == 8


# --- how long blocks live ---


def test_times_of_blocks_are_told_in_seconds(new_manager: NewManager) -> None:
    clock = Clock()
    manager = new_manager(66, 1, clock=clock)  # of these, blocks 1 and 65 are followed
    serve(manager, request(1, [7]))
    clock.now += 20
    assert run(manager, request(2, [7, 8])) == 1  # 20 s after the release of block 1
    manager.stats()
    manager.release(2)
    clock.now += 200
    begin(manager, request(4, range(1000, 1065)))  # evicts everything
    found = manager.histograms()

    def bucket(histogram: Histogram, value: float) -> int:
        return histogram.counts[bisect_left(histogram.bounds_seconds, value)]

    assert (sum(found.reuse_gap_seconds.counts), bucket(found.reuse_gap_seconds, 20)) == (1, 1)
    assert bucket(found.lifetime_seconds, 220) == 1
    assert bucket(found.idle_before_evict_seconds, 200) == 1
    assert found.lifetime_seconds.sum_seconds == pytest.approx(220, abs=1)
    assert manager.histograms() == found, "a sample counts once"


# --- fragmentation ---


def test_waste_is_told_in_tokens_blocks_and_bytes(new_manager: NewManager) -> None:
    manager = new_manager(17, 4, memory=ByteMemory(17, 8))  # 8 bytes a block
    run(manager, request(1, range(9)))
    run(manager, request(2, range(100, 108)))
    run(manager, request(3, range(16), use_cache=False, publish=False))
    run(manager, request(4, range(12), use_cache=False, publish=False))
    manager.flush(BLUE)
    manager.release(2)
    manager.flush(None)
    found = manager.fragmentation()
    assert found.slack_tokens == 3
    assert found.stranded_blocks == 2, "blocks 4 and 5"
    assert found.duplicate_blocks == 5, "two blocks three times, one twice"
    assert (found.slack_bytes, found.stranded_bytes, found.duplicate_bytes) == (6, 16, 40)


def test_copies_of_what_is_cached_are_duplicates(new_manager: NewManager) -> None:
    manager = new_manager(17, 4)
    serve(manager, request(1, range(8)))
    run(manager, request(2, [*range(8), *range(50, 58)], publish=False))
    assert manager.fragmentation().duplicate_blocks == 0, "these are the cached ones"
    run(manager, request(3, range(9), use_cache=False, publish=False))
    run(manager, request(4, range(9), BLUE, publish=False))
    found = manager.fragmentation()
    assert found.duplicate_blocks == 2, "another namespace is no copy"
    assert found.duplicate_bytes is None


def test_only_what_is_computed_is_a_duplicate(new_manager: NewManager) -> None:
    manager = new_manager(17, 4)
    begin(manager, request(1, range(16)))
    begin(manager, request(2, range(16)))
    manager.commit(1, 16)
    assert manager.fragmentation().duplicate_blocks == 0
    manager.commit(2, 16)
    assert manager.fragmentation().duplicate_blocks == 0, "de-duplicated"


# --- every state is counted ---


def test_the_states_of_blocks_add_up(new_manager: NewManager) -> None:
    manager = new_manager(33, 4)
    for first in (0, 100, 200, 300):
        serve(manager, request(1, range(first, first + 8)))
    manager.pin(RED, tokens(range(8)), 10)
    manager.begin_store(RED, tokens(range(100, 108)), 10)
    manager.expect(request(9, range(200, 209)))
    manager.begin_load(RED, tokens(range(400, 412)), 10)
    run(manager, request(2, range(500, 506)))
    stats = manager.stats()
    states = (
        stats.cached,
        stats.expected,
        stats.held,
        stats.pinned,
        stats.loading,
        stats.storing,
    )
    assert states == (2, 2, 2, 2, 3, 2)
    assert stats.free + sum(states) == stats.total == 32
    assert (stats.slack_tokens, stats.live_sequences) == (2, 1)
    assert stats.stranded_blocks == 0
    manager.release(2)
    assert manager.stats().stranded_blocks == 0
    lease = manager.begin_load(RED, tokens(range(600, 604)), 10)
    assert lease is not None
    manager.flush(None)
    assert manager.stats().stranded_blocks == 3, "blocks 7, 8 and 12 were only cached"
    manager.audit()
