"""Holders of all kinds, of each core: states, counts, what a refusal leaves alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from kv_core_driver import NewCore, array

from kvcache.core import NO_MATCH, HolderKind
from kvcache.errors import (
    InvalidArgumentError,
    OutOfBlocksError,
)

PIN, LOAD, STORE, EXPECT = HolderKind.PIN, HolderKind.LOAD, HolderKind.STORE, HolderKind.EXPECT


def test_a_pin_outlives_the_sequence_and_keeps_its_blocks_from_eviction(new_core: NewCore) -> None:
    cache = new_core(6)
    first = cache.start([1, 1, 2, 2, 3])
    pin = cache.keep([1, 1, 2, 2], PIN)
    assert cache.states() == {"free": 2, "held": 3}
    assert cache.counts().shared == 2
    cache.core.release(first)
    assert cache.states() == {"free": 3, "pinned": 2}
    assert cache.core.evict(5) == 0
    assert cache.core.available_blocks(0) == 3
    assert cache.core.release(pin)
    assert cache.states() == {"free": 3, "cached": 2}
    assert not cache.core.release(pin)


def test_a_load_publishes_what_has_arrived_and_frees_the_rest(new_core: NewCore) -> None:
    cache = new_core(9)
    cache.use([1, 1, 0])
    load = cache.begin([1, 1, 2, 2, 3, 3], LOAD, is_reuse=False)
    assert cache.states() == {"free": 5, "pinned": 1, "loading": 2}
    assert cache.core.pending_blocks(b"", array([1, 1, 2, 2, 9]), 2) == 2
    cache.core.commit(load, 4)
    assert cache.states() == {"free": 5, "pinned": 2, "loading": 1}
    assert cache.cached([1, 1, 2, 2, 3, 3]) == 2
    cache.core.release(load)
    assert cache.states() == {"free": 6, "cached": 2}
    assert cache.core.pending_blocks(b"", array([1, 1, 2, 2, 9]), 2) == 0


def test_a_stored_block_can_be_hit_but_not_evicted(new_core: NewCore) -> None:
    cache = new_core(6)
    cache.use([1, 1, 2, 2])
    store = cache.keep([1, 1, 2, 2], STORE)
    assert cache.states() == {"free": 3, "storing": 2}
    assert cache.core.evict(5) == 0
    sequence = cache.begin([1, 1, 2, 2, 3])
    assert cache.states() == {"free": 2, "held": 3}
    cache.core.release(sequence)
    assert cache.states() == {"free": 3, "storing": 2}
    cache.core.release(store)
    assert cache.states() == {"free": 3, "cached": 2}


def test_expected_blocks_count_as_available_but_are_not_evicted(new_core: NewCore) -> None:
    cache = new_core(4)
    cache.use([1, 1, 2, 2])
    waiting = cache.keep([1, 1, 2, 2], EXPECT)
    assert cache.states() == {"free": 1, "expected": 2}
    assert cache.core.available_blocks(0) == 3
    assert cache.core.match(b"", array([1, 1, 2, 2]), 2)[:2] == (2, 2)
    error = cache.refused(OutOfBlocksError, lambda: cache.begin([7, 7, 8, 8]))
    assert vars(error) == {"wanted_blocks": 2, "free_blocks": 1}
    running = cache.start([7, 7])
    before = cache.everything()
    assert cache.core.append(running, 8) == 1
    assert cache.everything() == before
    cache.core.release(waiting)
    assert cache.core.append(running, 8) == 0
    assert cache.cached([1, 1, 2, 2]) == 1


def test_the_expected_hits_of_a_sequence_are_its_own(new_core: NewCore) -> None:
    cache = new_core(4)
    cache.use([1, 1, 2, 2])
    cache.keep([1, 1, 2, 2], EXPECT)
    sequence = cache.begin([1, 1, 2, 2, 3])
    assert cache.states() == {"held": 3}
    cache.core.release(sequence)
    assert cache.states() == {"free": 1, "expected": 2}


def test_only_sequences_are_counted_as_such(new_core: NewCore) -> None:
    cache = new_core(12)
    cache.use([1, 1, 2, 2])
    pin = cache.keep([1, 1, 2, 2], PIN)
    load = cache.begin([5, 5, 6], LOAD)
    short = cache.begin([8])
    long = cache.begin([9, 9, 9])
    counts = cache.counts()
    assert (counts.live_sequences, cache.core.live_sequences) == (2, 2)
    assert (counts.reserved, counts.slack_tokens) == (3, 2)
    assert cache.core.largest_holders(9) == (long, short)
    assert [cache.core.is_live(holder) for holder in (pin, load, 99)] == [True, True, False]
    assert np.frombuffer(cache.core.tokens(pin), np.int32).tolist() == [1, 1, 2, 2]
    assert cache.core.exclusive_blocks(load) == 2


def test_only_the_release_of_a_sequence_is_a_tick(new_core: NewCore) -> None:
    cache = new_core(12)
    cache.use([1, 1, 2, 2])
    assert cache.core.ticks == 1
    for kind in (PIN, LOAD, STORE, EXPECT):
        cache.core.release(cache.keep([1, 1, 2, 2], kind))
    assert cache.core.ticks == 1


def test_a_flush_leaves_all_holders_their_blocks_until_they_let_go(new_core: NewCore) -> None:
    cache = new_core(12)
    cache.use([1, 1, 2, 2, 3, 3])
    holders = [
        cache.keep(tokens, kind)
        for tokens, kind in (([1, 1, 2, 2, 3, 3], EXPECT), ([1, 1, 2, 2], PIN), ([1, 1], STORE))
    ]
    assert cache.states() == {"free": 8, "expected": 1, "pinned": 1, "storing": 1}
    cache.use([7, 7])
    assert cache.core.flush(None) == (1, 3)
    assert cache.states() == {"free": 8, "expected": 1, "pinned": 1, "storing": 1}
    assert cache.core.runs() == []
    for holder in holders:
        cache.core.release(holder)
    assert cache.states() == {"free": 11}


def test_a_holder_has_a_kind_a_group_and_a_level(new_core: NewCore) -> None:
    cache = new_core(6)
    for field, most in (("kind", 4), ("group", 31), ("level", 7)):
        for value in (-1, most + 1):
            values = [0, 0, 0]
            values[("kind", "group", "level").index(field)] = value

            def begin(values: list[int] = values) -> None:
                cache.core.begin(1, b"", array([1]), True, NO_MATCH, False, *values)

            error = cache.refused(InvalidArgumentError, begin)
            facts = {"field": field, "value": value, "limit": f"from 0 to {most}"}
            assert vars(error) == facts
    cache.core.begin(1, b"", array([1]), True, NO_MATCH, False, 4, 31, 7)


def test_every_change_makes_a_new_version(new_core: NewCore) -> None:
    cache = new_core(6)
    core = cache.core
    changes: list[Callable[[], object]] = [
        lambda: cache.begin([1]),
        lambda: core.append(1, 2),
        lambda: core.commit(1, 1),
        lambda: core.fork(1, 2),
        lambda: core.release(2),
        lambda: core.set_group(1, 0, -1),
        lambda: core.set_expiry(1, 0),
        lambda: core.evict(0),
        lambda: core.resize(7),
        lambda: core.flush(None),
    ]
    for change in changes:
        version = core.version
        change()
        assert core.version == version + 1
    version = core.version
    core.release(99)
    core.counts(), core.match(b"", array([1, 1]), 1), core.drain_events(), core.drain_samples()
    assert core.version == version
