"""CacheManager: who may start."""

from __future__ import annotations

import numpy as np
import pytest
from kv_cores import NewManager
from kv_manager_driver import RED, begin, request, run, serve

from kvcache import AdmissionRequest, Fits, NeverFits, NotNow
from kvcache.errors import DuplicateSequenceError, InvalidArgumentError, StalePlanError


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
    with pytest.raises(InvalidArgumentError, match="block_tokens is 2147483648"):
        new_manager(9, 2**31)
    with pytest.raises(InvalidArgumentError, match="flat int32"):
        new_manager(9, 4).lookup(RED, np.arange(4, dtype=np.int64))  # type: ignore[arg-type]
