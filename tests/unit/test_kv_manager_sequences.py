"""CacheManager: the life of a sequence."""

from __future__ import annotations

import numpy as np
import pytest
from kv_cores import NewManager
from kv_manager_driver import RED, begin, request, run, serve

from kvcache import MissReason
from kvcache.errors import InvalidArgumentError, UnknownSequenceError

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
        manager.exclusive_blocks,
        manager.preempt,
        lambda number: manager.append(number, 1),
        lambda number: manager.commit(number, 0),
    ):
        with pytest.raises(UnknownSequenceError, match="sequence 5"):
            operation(5)
    assert manager.stats().preemptions == 0


def test_preempting_frees_what_nobody_else_holds(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    run(manager, request(1, range(16)))
    assert manager.exclusive_blocks(1) == 4
    run(manager, request(2, [*range(8), 50, 51]))
    assert manager.exclusive_blocks(1) == 2
    assert manager.exclusive_blocks(2) == 1
