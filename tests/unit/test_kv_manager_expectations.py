"""CacheManager: blocks that somebody is going to hit, and the order in which they are let go."""

from __future__ import annotations

import pytest
from kv_cores import NewManager
from kv_manager_driver import BLUE, RED, begin, request, run, serve, tokens

from kvcache import CacheManager, Fits, NotNow
from kvcache.errors import InvalidArgumentError, UnknownSequenceError
from kvcache.preemption import PreemptionMode


def cached(manager: CacheManager, *firsts: int) -> list[bool]:
    """Whether the two blocks of the prompts that begin so are cached."""
    return [manager.lookup(RED, tokens(range(first, first + 9))) == 8 for first in firsts]


def test_what_a_waiting_request_will_hit_is_evicted_last(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    for first in (0, 100, 200):
        serve(manager, request(1, range(first, first + 8)))
    assert manager.expect(request(7, range(9))) == 8
    assert manager.stats().expected == 2
    serve(manager, request(2, range(300, 324)))  # six blocks: all that nobody expects
    assert cached(manager, 0, 100, 200) == [True, False, False]
    assert begin(manager, request(7, range(9))) == 8
    assert not manager.unexpect(7)
    manager.release(7)
    assert manager.stats().expected == 0
    manager.audit()


def test_expected_blocks_are_available_to_who_needs_them(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    manager.expect(request(7, range(9)))
    answer = manager.admit(request(2, range(100, 132)))
    assert isinstance(answer, Fits)
    assert manager.begin(answer) == 0
    assert manager.stats().dropped_expectations == 1
    assert not manager.unexpect(7)
    manager.audit()


def test_the_newest_expectation_is_let_go_first(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    for number, first in enumerate((0, 100, 200, 300)):
        serve(manager, request(1, range(first, first + 8)))
        manager.expect(request(10 + number, range(first, first + 9)))
    manager.expect(request(10, range(9)))  # asked again: the newest now
    begin(manager, request(2, range(500, 509)))  # three blocks
    assert cached(manager, 0, 100, 200) == [False, True, True]
    assert manager.stats().dropped_expectations == 2
    assert [manager.unexpect(number) for number in range(10, 14)] == [False, True, True, False]


def test_an_append_takes_an_expected_block_when_there_is_no_other(new_manager: NewManager) -> None:
    manager = new_manager(4, 4)
    serve(manager, request(1, range(8)))
    manager.expect(request(7, range(9)))
    begin(manager, request(2, range(100, 104)))
    assert [manager.append(2, token) for token in range(8)] == [0] * 8
    assert manager.append(2, 9) == 1
    manager.audit()


def test_a_request_is_not_robbed_of_its_own_hits_by_its_own_need(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(16)))
    wanted = request(7, range(32))
    assert manager.expect(wanted) == 16
    run(manager, request(2, range(100, 108)))
    assert isinstance(manager.admit(wanted), NotNow)
    manager.release(2)
    assert begin(manager, wanted) == 16
    manager.audit()


def test_nothing_is_kept_for_a_request_without_hits_or_that_will_not_use_them(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    assert manager.expect(request(7, range(9), use_cache=False)) == 0
    assert manager.expect(request(7, range(9), BLUE)) == 0
    assert manager.expect(request(7, range(8))) == 4, "the last token is computed anew"
    assert manager.expect(request(7, range(50, 59))) == 0
    assert not manager.unexpect(7), "replaced by one that keeps nothing"


def test_a_forgotten_request_keeps_nothing(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    serve(manager, request(1, range(8)))
    manager.expect(request(7, range(9)))
    manager.forget(7)
    manager.forget(7)
    assert (manager.stats().expected, manager.stats().cached) == (0, 2)


# --- trimmed sequences ---


def test_a_trimmed_sequence_finds_its_prefix_again(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(24)))
    manager.preempt(1, keep_blocks=4)
    stats = manager.stats()
    assert (stats.expected, stats.cached, stats.free) == (4, 2, 2)
    serve(manager, request(2, range(100, 116)))  # evicts the tail
    assert begin(manager, request(1, range(24), resumed=True)) == 16
    manager.release(1)
    stats = manager.stats()
    assert stats.expected == 0, "begun again, nothing is kept for it"
    assert stats.preemptions_by_mode[PreemptionMode.TRIM] == 1
    manager.audit()


def test_generated_tokens_are_part_of_what_is_kept(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(4)))
    for token in range(50, 58):
        assert manager.append(1, token) == 0
    manager.commit(1, 12)
    manager.preempt(1, keep_blocks=3)
    assert manager.stats().expected == 3


def test_kept_prefixes_go_after_expectations_and_the_last_trimmed_first(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    for sequence_id, first in enumerate((0, 100, 200)):
        run(manager, request(sequence_id, range(first, first + 8)))
    for sequence_id in range(3):
        manager.preempt(sequence_id, keep_blocks=2)
    serve(manager, request(5, range(300, 308)))
    manager.expect(request(9, range(300, 309)))
    begin(manager, request(6, range(400, 408)))
    assert cached(manager, 0, 100, 200, 300) == [True, True, True, False]
    begin(manager, request(7, range(500, 508)))
    assert cached(manager, 0, 100, 200) == [True, True, False]


def test_an_idle_pool_of_kept_prefixes_admits_all_that_can_ever_fit(
    new_manager: NewManager,
) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(16)))
    run(manager, request(2, [*range(8), *range(50, 58)]))  # shares two blocks
    manager.preempt(1, keep_blocks=4)
    manager.preempt(2, keep_blocks=4)
    serve(manager, request(3, range(100, 132), headroom_blocks=8))


def test_keeping_more_than_is_published_keeps_what_is(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    begin(manager, request(1, range(16)))
    manager.commit(1, 9)
    manager.preempt(1, keep_blocks=100)
    assert (manager.stats().expected, manager.stats().free) == (2, 6)
    begin(manager, request(2, range(100, 116), publish=False))
    manager.commit(2, 16)
    manager.preempt(2, keep_blocks=2)
    assert manager.stats().preemptions_by_mode[PreemptionMode.RECOMPUTE] == 1


def test_blocks_that_others_computed_meanwhile_are_not_the_sequences_to_keep(
    new_manager: NewManager,
) -> None:
    manager = new_manager(20, 4)
    run(manager, request(1, range(16)))
    manager.flush(RED)
    serve(manager, request(2, range(16), use_cache=False))
    manager.preempt(1, keep_blocks=4)
    assert manager.stats().expected == 0
    assert manager.stats().preemptions_by_mode[PreemptionMode.RECOMPUTE] == 1


def test_a_second_preemption_is_refused_and_changes_nothing(new_manager: NewManager) -> None:
    manager = new_manager(9, 4)
    run(manager, request(1, range(16)))
    with pytest.raises(InvalidArgumentError, match="keep_blocks is -1"):
        manager.preempt(1, keep_blocks=-1)
    manager.preempt(1, keep_blocks=2)
    before = manager.stats()
    with pytest.raises(UnknownSequenceError):
        manager.preempt(1, keep_blocks=2)
    assert not manager.release(1)
    assert manager.stats() == before
    manager.forget(1)
    assert manager.stats().expected == 0
