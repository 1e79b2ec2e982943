"""Forks and partial matches, of each core."""

from __future__ import annotations

import pytest
from kv_core_driver import NewCore, array

from kvcache.core import NO_MATCH, HolderKind
from kvcache.errors import (
    ConservationError,
    DuplicateSequenceError,
    InvalidArgumentError,
    OutOfBlocksError,
    UnknownSequenceError,
)

PIN = HolderKind.PIN


def test_a_fork_shares_full_blocks_and_copies_the_tail(new_core: NewCore) -> None:
    cache = new_core(9, 4)
    parent = cache.start([1, 2, 3, 4, 5, 6])
    assert cache.core.fork(parent, 50) == (2, 3)
    assert (cache.table(parent), cache.table(50)) == ([1, 2], [1, 3])
    assert (cache.core.num_tokens(50), cache.core.computed_tokens(50)) == (6, 6)
    assert cache.counts().shared == 1
    for holder, token in ((parent, 7), (50, 8)):
        assert cache.core.append(holder, token) == 0
        assert cache.core.append(holder, 9) == 0
        cache.core.commit(holder, 8)
    assert cache.cached([1, 2, 3, 4, 5, 6, 7, 9]) == 2
    assert cache.cached([1, 2, 3, 4, 5, 6, 8, 9]) == 2
    assert cache.core.release(parent)
    assert cache.core.fork(50, parent) is None, "all blocks are full"
    assert cache.table(parent) == [1, 3]


def test_a_fork_of_a_sequence_with_a_token_to_compute(new_core: NewCore) -> None:
    cache = new_core(9, 2)
    parent = cache.start([1, 2])
    assert cache.core.append(parent, 3) == 0
    assert cache.core.fork(parent, 50) is None, "the tail has no computed token to copy"
    assert (cache.table(parent), cache.table(50)) == ([1, 2], [1, 3])
    cache.core.append(parent, 4)
    error = cache.refused(InvalidArgumentError, lambda: cache.core.fork(parent, 51))
    limit = f"at least 3 (the tokens of sequence {parent} but the last)"
    assert vars(error) == {"field": "computed_tokens", "value": 2, "limit": limit}
    assert (cache.counts().reserved, cache.counts().slack_tokens) == (2, 1)


def test_a_fork_takes_everything_or_nothing(new_core: NewCore) -> None:
    cache = new_core(3, 4)
    parent = cache.start([1, 2, 3, 4, 5, 6])
    pin = cache.keep([1, 2, 3, 4], PIN)
    fork = cache.core.fork
    error = cache.refused(OutOfBlocksError, lambda: fork(parent, 50))
    assert vars(error) == {"wanted_blocks": 1, "free_blocks": 0}
    cache.refused(UnknownSequenceError, lambda: fork(99, 50))
    cache.refused(UnknownSequenceError, lambda: fork(pin, 50))
    cache.refused(DuplicateSequenceError, lambda: fork(parent, pin))
    cache.refused(DuplicateSequenceError, lambda: fork(parent, parent))


def test_a_fork_that_publishes_nothing_may_share_all_the_same(new_core: NewCore) -> None:
    cache = new_core(9, 2)
    parent = cache.start([1, 2, 3], publish=False)
    assert cache.core.fork(parent, 50) == (2, 3)
    for holder in (parent, 50):
        cache.core.append(holder, 4)
        cache.core.commit(holder, 4)
        assert cache.core.release(holder)
    assert cache.states() == {"free": 8}


# --- parts of blocks ---


def test_a_partial_match_goes_on_behind_the_match(new_core: NewCore) -> None:
    cache = new_core(9, 4)
    cache.use([1, 2, 3, 4, 5, 6, 7, 8])
    wanted = array([1, 2, 3, 4, 5, 6, 0, 0])
    match = cache.core.match(b"", wanted, 1)
    assert cache.core.partial_match(b"", wanted, match) == (2, 2)
    assert cache.core.partial_match(b"", wanted[:6], match) == (2, 1)
    assert cache.core.partial_match(b"", wanted[:5], match) == (0, 0)
    assert cache.core.partial_match(b"", wanted, NO_MATCH) == (1, 4)
    assert cache.core.partial_match(b"other", wanted, NO_MATCH) == (0, 0)
    cache.core.evict(1)
    assert cache.core.partial_match(b"", wanted, match) == (0, 0)
    with pytest.raises(ConservationError, match="a match names blocks that cannot be"):
        cache.core.partial_match(b"", wanted[:3], match)
