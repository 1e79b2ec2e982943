"""CacheManager: forks, and blocks that agree in part. What is copied, and when."""

from __future__ import annotations

import pytest
from kv_cores import NewManager
from kv_manager_driver import RED, ByteMemory, begin, request, run, serve, tokens

from kvcache import CacheManager
from kvcache.errors import (
    DuplicateSequenceError,
    InvalidArgumentError,
    OutOfBlocksError,
    UnknownSequenceError,
)


def compute(manager: CacheManager, memory: ByteMemory, sequence_id: int, ids: list[int]) -> None:
    """Writes one byte for each token that is not computed yet, as a model writes K and V."""
    table = manager.block_table(sequence_id).tolist()
    for position in range(manager.computed_tokens(sequence_id), len(ids)):
        memory.blocks[table[position // 4]][position % 4] = ids[position]
    manager.commit(sequence_id, len(ids))


def contents(manager: CacheManager, memory: ByteMemory, sequence_id: int) -> list[int]:
    table = manager.block_table(sequence_id).tolist()
    return list(b"".join(memory.blocks[block] for block in table))[
        : manager.computed_tokens(sequence_id)
    ]


# --- fork ---


def test_a_fork_shares_full_blocks_and_copies_the_partial_one(new_manager: NewManager) -> None:
    memory = ByteMemory(9, 4)
    manager = new_manager(9, 4, memory=memory)
    prompt = list(range(10))
    begin(manager, request(1, prompt))
    compute(manager, memory, 1, prompt)
    manager.fork(1, 2)
    assert manager.block_table(1).tolist() == [1, 2, 3]
    assert manager.block_table(2).tolist() == [1, 2, 4]
    assert memory.copies == [(3, 4)]
    for sequence_id, token in ((1, 77), (2, 88)):
        manager.append(sequence_id, token)
        compute(manager, memory, sequence_id, [*prompt, token])
    assert contents(manager, memory, 1) == [*prompt, 77]
    assert contents(manager, memory, 2) == [*prompt, 88]
    assert (manager.stats().forks, manager.stats().shared) == (1, 2)
    manager.release(1)
    assert contents(manager, memory, 2) == [*prompt, 88]
    manager.audit()


def test_a_fork_at_the_end_of_a_block_copies_nothing(new_manager: NewManager) -> None:
    memory = ByteMemory(9, 4)
    manager = new_manager(9, 4, memory=memory)
    run(manager, request(1, range(8)))
    manager.fork(1, 2)
    assert manager.block_table(2).tolist() == [1, 2]
    manager.append(1, 50)  # a block of its own for a token that is not computed
    manager.fork(1, 3)
    assert manager.block_table(3).tolist() == [1, 2, 4]
    assert memory.copies == []


def test_a_child_may_be_forked_preempted_and_finished_like_any_sequence(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(8)))
    manager.fork(1, 2)
    manager.fork(2, 3)
    manager.preempt(2, keep_blocks=1)
    assert manager.release(3)
    assert manager.release(1)
    assert (manager.stats().expected, manager.stats().cached) == (1, 1)
    manager.audit()


def test_a_fork_without_room_changes_nothing(new_manager: NewManager) -> None:
    manager = new_manager(4, 4)
    run(manager, request(1, range(10)))
    before = manager.stats()
    with pytest.raises(OutOfBlocksError):
        manager.fork(1, 2)
    with pytest.raises(UnknownSequenceError, match="sequence 7"):
        manager.fork(7, 2)
    with pytest.raises(DuplicateSequenceError, match="sequence 1"):
        manager.fork(1, 1)
    with pytest.raises(InvalidArgumentError, match="child_id is -1"):
        manager.fork(1, -1)
    with pytest.raises(InvalidArgumentError, match="child_id"):
        manager.fork(1, 2**62)
    assert manager.stats() == before
    with pytest.raises(UnknownSequenceError):
        manager.block_table(2)
    manager.audit()


def test_a_fork_takes_what_was_only_expected(new_manager: NewManager) -> None:
    manager = new_manager(5, 4)
    serve(manager, request(1, range(4)))
    manager.expect(request(9, range(5)))
    run(manager, request(2, range(100, 110)))
    manager.fork(2, 3)
    assert manager.stats().dropped_expectations == 1


def test_what_is_not_computed_cannot_be_forked(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    begin(manager, request(1, range(10)))
    manager.commit(1, 8)
    with pytest.raises(InvalidArgumentError, match="computed_tokens is 8"):
        manager.fork(1, 2)


# --- blocks that agree in part ---


def test_the_leading_tokens_of_a_cached_block_are_reused_by_a_copy(
    new_manager: NewManager,
) -> None:
    memory = ByteMemory(9, 4)
    manager = new_manager(9, 4, memory=memory)
    prompt = list(range(8))
    begin(manager, request(1, prompt))
    compute(manager, memory, 1, prompt)
    manager.release(1)
    other = [0, 1, 2, 3, 4, 5, 60, 61, 62]
    assert begin(manager, request(2, other)) == 6
    assert memory.copies == [(2, 3)]
    assert manager.computed_tokens(2) == 6
    compute(manager, memory, 2, other)
    assert contents(manager, memory, 2) == other
    stats = manager.stats()
    assert (stats.hit_tokens, stats.partial_hit_tokens) == (6, 2)
    assert list(memory.blocks[2]) == [4, 5, 6, 7], "the source is as it was"
    manager.audit()


def test_admission_promises_the_partial_hit_that_begin_gives(new_manager: NewManager) -> None:
    manager = new_manager(9, 4, memory=ByteMemory(9, 4))
    serve(manager, request(1, range(8)))
    answer = manager.admit(request(2, [0, 1, 2, 3, 4, 99, 98]))
    assert (answer.cached_tokens, answer.new_blocks) == (5, 1)  # type: ignore[union-attr]
    assert manager.begin(answer) == 5  # type: ignore[arg-type]


def test_the_last_token_is_computed_even_if_a_block_has_it(new_manager: NewManager) -> None:
    manager = new_manager(9, 4, memory=ByteMemory(9, 4))
    serve(manager, request(1, range(8)))
    assert begin(manager, request(2, range(8))) == 7


@pytest.mark.parametrize(("fewest", "cached"), [(1, 6), (2, 6), (3, 4), (None, 4)])
def test_a_copy_must_be_worth_it(new_manager: NewManager, fewest: int | None, cached: int) -> None:
    manager = new_manager(9, 4, memory=ByteMemory(9, 4), partial_reuse_tokens=fewest)
    serve(manager, request(1, range(8)))
    assert begin(manager, request(2, [0, 1, 2, 3, 4, 5, 99, 98])) == cached


def test_without_a_memory_nothing_is_reused_in_part(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    assert begin(manager, request(2, [0, 1, 2, 3, 4, 5, 99, 98])) == 4
    with pytest.raises(InvalidArgumentError, match="partial_reuse_tokens is 0"):
        new_manager(9, 4, partial_reuse_tokens=0)


def test_a_source_that_is_evicted_by_its_own_user_is_copied_in_time(
    new_manager: NewManager,
) -> None:
    memory = ByteMemory(4, 4)
    manager = new_manager(4, 4, memory=memory)
    prompt = list(range(8))
    begin(manager, request(1, prompt))
    compute(manager, memory, 1, prompt)
    manager.release(1)
    other = [0, 1, 2, 3, 4, 5, 60, 61, 62, 63]  # needs both blocks that are not its hit
    assert begin(manager, request(2, other)) == 6
    compute(manager, memory, 2, other)
    assert contents(manager, memory, 2) == other
    assert manager.lookup(RED, tokens(prompt)) == 4
    manager.audit()
