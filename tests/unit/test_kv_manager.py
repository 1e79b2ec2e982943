"""CacheManager: what a scheduler may rely on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
from kv_cores import NewManager, needs_native

from kvcache import AdmissionRequest, CacheManager, Fits, FlushResult, MissReason, NeverFits, NotNow
from kvcache.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    StalePlanError,
    UnknownSequenceError,
)

RED, BLUE = b"red", b"blue"


@pytest.fixture(params=["python", pytest.param("native", marks=needs_native)])
def new_manager(request: pytest.FixtureRequest) -> NewManager:
    """Makes a manager from num_blocks and block_tokens, once with each core."""
    return partial(CacheManager, core=request.param)


def request(
    sequence_id: int,
    tokens: Sequence[int],
    namespace: bytes = RED,
    *,
    use_cache: bool = True,
    publish: bool = True,
    headroom_blocks: int = 0,
    resumed: bool = False,
) -> AdmissionRequest:
    ids = np.array(tokens, np.int32)
    return AdmissionRequest(
        sequence_id, ids, namespace, use_cache, publish, headroom_blocks, resumed
    )


def begin(manager: CacheManager, wanted: AdmissionRequest) -> int:
    answer = manager.admit(wanted)
    assert isinstance(answer, Fits)
    return manager.begin(answer)


def run(manager: CacheManager, wanted: AdmissionRequest) -> int:
    """Admits and computes all tokens; answers how many were cached."""
    cached = begin(manager, wanted)
    manager.commit(wanted.sequence_id, wanted.token_ids.size)
    return cached


def serve(manager: CacheManager, wanted: AdmissionRequest) -> int:
    """A whole life of a sequence that generates nothing."""
    cached = run(manager, wanted)
    assert manager.release(wanted.sequence_id)
    manager.audit()
    return cached


# --- admission ---


@pytest.mark.parametrize("block_tokens", [1, 4, 16, 256])
def test_capacity_is_exact_and_the_null_block_is_not_part_of_it(
    new_manager: NewManager, block_tokens: int
) -> None:
    usable = 8
    limit = usable * block_tokens
    manager = new_manager(usable + 1, block_tokens)
    assert manager.usable_blocks == usable
    for tokens in (limit - 1, limit):
        assert serve(manager, request(1, range(tokens), use_cache=False)) == 0
    assert manager.admit(request(1, range(limit + 1))) == NeverFits(9, 8, limit)


def test_never_fits_does_not_depend_on_what_is_live(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(30)))
    assert manager.admit(request(2, range(33))) == NeverFits(9, 8, 32)


def test_not_now_says_how_many_blocks_are_short_and_who_holds_the_most(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(4)))
    run(manager, request(2, range(100, 120)))
    assert manager.admit(request(3, range(200, 216))) == NotNow(short_blocks=2, holders=(2, 1))
    manager.release(2)
    assert isinstance(manager.admit(request(3, range(200, 216))), Fits)


def test_admission_changes_nothing(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(20)))
    before = manager.stats()
    for _ in range(3):
        manager.admit(request(2, range(20)))
        manager.lookup(RED, np.arange(20, dtype=np.int32))
    assert manager.stats() == before


def test_evictable_blocks_count_as_available_unless_they_are_the_requests_own_hits(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(20)))  # 5 blocks, all cached; 3 free
    alike = request(2, [*range(20), *range(50, 62)])  # 8 blocks of which 5 hit
    assert manager.admit(alike) == Fits(20, 3, plan=None)  # type: ignore[arg-type]
    run(manager, request(3, range(100, 104)))
    assert manager.admit(alike) == NotNow(short_blocks=1, holders=(3,))


def test_hits_that_a_live_sequence_holds_take_nothing_from_what_is_available(
    new_manager: NewManager,
) -> None:
    manager = new_manager(6, 4)
    run(manager, request(1, range(16)))
    assert begin(manager, request(2, [*range(16), 99])) == 16
    assert manager.stats().shared == 4
    assert manager.stats().free == 0


def test_headroom_is_kept_beside_live_sequences_and_ignored_on_an_idle_pool(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    assert isinstance(manager.admit(request(1, range(32), headroom_blocks=4)), Fits)
    run(manager, request(1, range(8)))
    assert isinstance(manager.admit(request(2, range(50, 66), headroom_blocks=2)), Fits)
    assert manager.admit(request(2, range(50, 66), headroom_blocks=3)) == NotNow(1, (1,))


def test_an_idle_pool_admits_everything_that_can_ever_fit(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    for first in range(0, 1000, 100):
        serve(manager, request(1, range(first, first + 32), headroom_blocks=8))


def test_a_hit_never_covers_the_last_token(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(12)))
    assert serve(manager, request(2, range(12))) == 8
    assert serve(manager, request(2, range(13))) == 12
    assert manager.lookup(RED, np.arange(12, dtype=np.int32)) == 8


def test_a_plan_survives_changes_in_between_if_the_sequence_still_fits(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    answer = manager.admit(request(1, range(12)))
    serve(manager, request(2, range(12)))
    assert isinstance(answer, Fits)
    assert answer.cached_tokens == 0
    assert manager.begin(answer) == 8, "the plan is made anew"


def test_a_stale_plan_that_does_not_fit_any_more_changes_nothing(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    answers = [manager.admit(request(number, range(number, number + 20))) for number in (1, 2)]
    assert isinstance(answers[0], Fits)
    assert isinstance(answers[1], Fits)
    manager.begin(answers[0])
    before = manager.stats()
    with pytest.raises(StalePlanError) as caught:
        manager.begin(answers[1])
    assert (caught.value.sequence_id, caught.value.short_blocks) == (2, 2)
    assert manager.stats() == before
    manager.audit()


def test_one_id_cannot_be_live_twice(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    answer = manager.admit(request(1, range(4)))
    assert isinstance(answer, Fits)
    manager.begin(answer)
    with pytest.raises(DuplicateSequenceError, match="sequence 1"):
        manager.begin(answer)
    manager.audit()


def test_malformed_requests_name_the_field_and_the_limit(new_manager: NewManager) -> None:
    with pytest.raises(InvalidArgumentError, match="token_ids is 'int64 array of shape"):
        AdmissionRequest(1, np.arange(4), RED)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match=r"token_ids is .* at least one token"):
        request(1, [])
    with pytest.raises(InvalidArgumentError, match="sequence_id is -1"):
        request(-1, [1])
    with pytest.raises(InvalidArgumentError, match="headroom_blocks is -2"):
        request(1, [1], headroom_blocks=-2)
    with pytest.raises(InvalidArgumentError, match="block_tokens is 0"):
        new_manager(9, 0)
    with pytest.raises(InvalidArgumentError, match="flat int32"):
        new_manager(9, 4).lookup(RED, np.arange(4, dtype=np.int64))  # type: ignore[arg-type]


# --- growth and commits ---


def test_an_append_takes_a_block_only_when_the_last_one_is_full(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    begin(manager, request(1, range(3)))
    assert [manager.append(1, 7) for _ in range(6)] == [0] * 6
    assert manager.block_table(1).tolist() == [1, 2, 3]
    assert manager.num_tokens(1) == 9
    manager.audit()


def test_an_append_evicts_before_it_gives_up(new_manager: NewManager) -> None:
    manager = new_manager(4, 4)
    serve(manager, request(1, range(8)))
    begin(manager, request(2, range(50, 54)))
    assert [manager.append(2, token) for token in range(8)] == [0] * 8
    assert manager.stats().evicted_blocks == 2
    before = manager.stats()
    assert manager.append(2, 99) == 1
    assert manager.stats() == before
    assert manager.num_tokens(2) == 12
    manager.audit()


def test_blocks_of_a_preempted_sequence_can_be_used_at_once(new_manager: NewManager) -> None:
    manager = new_manager(5, 4)
    run(manager, request(1, range(8)))
    run(manager, request(2, range(50, 58)))
    assert manager.append(1, 1) == 1
    manager.preempt(2)
    assert manager.append(1, 1) == 0
    manager.audit()


def test_two_identical_prompts_in_one_batch_end_with_one_copy_and_two_valid_tables(
    new_manager: NewManager,
) -> None:
    manager = new_manager(20, 4)
    begin(manager, request(1, range(16)))
    begin(manager, request(2, range(16)))
    assert set(manager.block_table(1)) & set(manager.block_table(2)) == set()
    manager.commit(1, 16)
    manager.commit(2, 16)
    assert manager.block_table(2).tolist() == manager.block_table(1).tolist()
    stats = manager.stats()
    assert (stats.held, stats.shared, stats.deduplicated_blocks) == (4, 4, 4)
    manager.release(1)
    assert manager.stats().held == 4, "the survivor still holds what the donor published"
    manager.release(2)
    assert (manager.stats().cached, manager.stats().free) == (4, 15)
    manager.audit()


def test_a_duplicate_of_a_cached_block_revives_the_cached_one(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    begin(manager, request(1, range(9)))
    serve(manager, request(2, range(9)))
    cached = manager.stats().cached
    manager.commit(1, 9)
    assert (cached, manager.stats().cached) == (2, 0)
    manager.audit()


def test_partial_blocks_are_not_shared(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    run(manager, request(1, range(7)))
    manager.release(1)
    stats = manager.stats()
    assert (stats.cached, stats.free) == (1, 18)


def test_what_is_not_computed_is_not_shared(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    begin(manager, request(1, range(16)))
    manager.commit(1, 8)
    assert manager.lookup(RED, np.arange(16, dtype=np.int32)) == 8
    manager.release(1)
    assert manager.lookup(RED, np.arange(16, dtype=np.int32)) == 8
    assert manager.stats().free == 17


def test_a_sequence_that_does_not_publish_may_hit_and_leaves_nothing(
    new_manager: NewManager,
) -> None:
    manager = new_manager(20, 4)
    serve(manager, request(1, range(8)))
    assert serve(manager, request(2, range(20), publish=False)) == 8
    assert manager.stats().cached == 2


def test_a_sequence_that_does_not_use_the_cache_computes_everything(
    new_manager: NewManager,
) -> None:
    manager = new_manager(20, 4)
    serve(manager, request(1, range(8)))
    assert serve(manager, request(2, range(9), use_cache=False)) == 0
    assert manager.stats().misses[MissReason.DISABLED] == 1
    assert manager.stats().lookup_tokens == 8


@pytest.mark.parametrize("computed", [3, 10])
def test_a_commit_outside_the_tokens_is_refused(new_manager: NewManager, computed: int) -> None:
    manager = new_manager(20, 4)
    begin(manager, request(1, range(9)))
    manager.commit(1, 4)
    with pytest.raises(InvalidArgumentError, match=r"from 4 .* to 9"):
        manager.commit(1, computed)
    assert manager.computed_tokens(1) == 4
    manager.audit()


def test_a_block_table_cannot_be_written_through(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    begin(manager, request(1, range(9)))
    with pytest.raises(ValueError, match="read-only"):
        manager.block_table(1)[0] = 5


def test_the_generated_tokens_of_a_turn_are_hits_of_the_next_one(new_manager: NewManager) -> None:
    manager = new_manager(40, 4)
    begin(manager, request(1, range(6)))
    manager.commit(1, 6)
    for token in range(100, 110):
        assert manager.append(1, token) == 0
        manager.commit(1, manager.num_tokens(1))
    manager.release(1)
    turn = [*range(6), *range(100, 110), 7, 7, 7]
    assert serve(manager, request(2, turn)) == 16


# --- namespaces ---


def test_only_one_namespace_shares(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    serve(manager, request(1, range(9), RED))
    assert serve(manager, request(2, range(9), BLUE)) == 0
    assert serve(manager, request(3, range(9), RED)) == 8
    assert serve(manager, request(4, range(9), BLUE)) == 8


# --- ends ---


def test_release_is_idempotent_in_every_phase(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    assert not manager.release(1)
    for computed in range(10):
        begin(manager, request(1, range(9), use_cache=False))
        manager.commit(1, computed) if computed < 10 else None
        assert manager.release(1)
        assert not manager.release(1)
        manager.audit()
    assert manager.stats().held == 0


def test_a_preempted_sequence_finds_its_blocks_again_and_its_hits_are_counted_apart(
    new_manager: NewManager,
) -> None:
    manager = new_manager(20, 4)
    run(manager, request(1, range(9)))
    manager.preempt(1)
    assert run(manager, request(1, range(9), resumed=True)) == 8
    stats = manager.stats()
    assert (stats.preemptions, stats.resumed_hit_tokens) == (1, 8)
    assert (stats.lookup_tokens, stats.hit_tokens) == (9, 0)


def test_operations_on_unknown_sequences_raise(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    for operation in (
        manager.block_table,
        manager.num_tokens,
        manager.computed_tokens,
        manager.recompute_tokens,
        manager.preempt,
        lambda number: manager.append(number, 1),
        lambda number: manager.commit(number, 0),
    ):
        with pytest.raises(UnknownSequenceError, match="sequence 5"):
            operation(5)
    assert manager.stats().preemptions == 0


def test_the_recompute_cost_leaves_out_what_others_hold(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    run(manager, request(1, range(16)))
    assert manager.recompute_tokens(1) == 16
    run(manager, request(2, [*range(8), 50, 51]))
    assert manager.recompute_tokens(1) == 8
    assert manager.recompute_tokens(2) == 2


# --- flush ---


def test_a_flush_drops_what_is_cached_and_leaves_live_sequences_their_blocks(
    new_manager: NewManager,
) -> None:
    manager = new_manager(20, 4)
    serve(manager, request(1, range(16)))
    run(manager, request(2, [*range(8), 50, 51]))
    table = manager.block_table(2).tolist()
    assert manager.flush(RED) == FlushResult(dropped_blocks=2, kept_blocks=2)
    assert manager.block_table(2).tolist() == table
    assert manager.lookup(RED, np.arange(16, dtype=np.int32)) == 0
    manager.audit()
    # What is computed now rests on what was flushed: it is never shared.
    for token in range(8):
        assert manager.append(2, token) == 0
    manager.commit(2, 18)
    assert manager.lookup(RED, np.array([*range(8), 50, 51, *range(8)], np.int32)) == 0
    manager.release(2)
    assert manager.stats().free == 19
    manager.audit()


def test_a_flush_of_one_namespace_spares_the_others(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    serve(manager, request(1, range(9), RED))
    run(manager, request(2, range(9), BLUE))
    assert manager.flush(RED) == FlushResult(2, 0)
    assert manager.lookup(BLUE, np.arange(9, dtype=np.int32)) == 8
    manager.append(2, 1)
    assert manager.flush(None) == FlushResult(0, 2)
    manager.release(2)
    assert manager.stats().cached == 0


# --- pending prefixes ---


def test_a_prefix_that_is_being_computed_is_worth_waiting_for(new_manager: NewManager) -> None:
    manager = new_manager(40, 4)
    waiting = request(2, [*range(16), 99])
    assert manager.pending_prefix(waiting) == 0
    begin(manager, request(1, range(18)))
    assert manager.pending_prefix(waiting) == 16
    assert manager.pending_prefix(request(2, [*range(6), 99, 99, 99])) == 4
    assert manager.pending_prefix(request(2, range(16))) == 12, "the last token is not shared"
    assert manager.pending_prefix(request(2, [*range(16), 99], BLUE)) == 0
    assert manager.pending_prefix(request(2, [*range(16), 99], use_cache=False)) == 0
    manager.commit(1, 12)
    assert manager.pending_prefix(waiting) == 16
    manager.commit(1, 16)
    assert manager.pending_prefix(waiting) == 0
    assert manager.admit(waiting) == Fits(16, 1, plan=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["release", "flush"])
def test_nobody_waits_for_a_prefill_that_will_not_publish(
    new_manager: NewManager, end: str
) -> None:
    manager = new_manager(40, 4)
    begin(manager, request(1, range(16)))
    begin(manager, request(3, range(16), publish=False))
    manager.release(1) if end == "release" else manager.flush(RED)
    assert manager.pending_prefix(request(2, range(16))) == 0


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
