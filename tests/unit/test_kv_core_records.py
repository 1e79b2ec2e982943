"""What a core tells of itself: events of the index, and samples of the life of blocks."""

from __future__ import annotations

from kv_core_driver import NewCore

from kvcache.core import HolderKind

SEQUENCE, PIN = HolderKind.SEQUENCE, HolderKind.PIN


def test_events_tell_every_change_of_the_index_in_order(new_core: NewCore) -> None:
    cache = new_core(5)
    cache.use([1, 1, 2, 2], namespace=b"n")
    cache.use([1, 1, 3, 3, 4, 4], namespace=b"n")
    running = cache.begin([7, 7, 8])
    assert cache.core.append(running, 8) == 0
    assert cache.core.append(running, 9) == 0
    cache.core.commit(running, 4)
    cache.core.flush(b"unknown")
    cache.core.evict(1)
    cache.core.flush(None)
    assert cache.core.drain_events() == [
        ("stored", b"n", None, (1, 2), (1, 1, 2, 2)),
        ("stored", b"n", 1, (3, 4), (3, 3, 4, 4)),
        ("removed", (2, 4, 3)),
        ("stored", b"", None, (2, 4), (7, 7, 8, 8)),
        ("cleared", b"unknown"),
        ("removed", (1,)),
        ("cleared", None),
    ]
    assert cache.core.drain_events() == []


def test_a_commit_tells_only_what_was_not_there(new_core: NewCore) -> None:
    cache = new_core(9)
    first = cache.start([1, 1, 2, 2])
    second = cache.begin([1, 1, 2, 2, 3, 3], use_cache=False)
    cache.core.drain_events()
    cache.core.commit(second, 6)
    assert cache.core.drain_events() == [("stored", b"", 2, (5,), (3, 3))]
    assert cache.table(second) == [*cache.table(first), 5]
    assert cache.counts().deduplicated == 2


def test_events_are_told_only_while_they_are_wanted(new_core: NewCore) -> None:
    cache = new_core(9)
    cache.core.record_events = False
    cache.use([1, 1])
    cache.core.record_events = True
    cache.use([2, 2])
    assert cache.core.drain_events() == [("stored", b"", None, (2,), (2, 2))]


def test_one_block_of_64_is_a_sample_of_all(new_core: NewCore) -> None:
    cache = new_core(70)
    cache.use([1, 1])
    cache.use([2, 2])
    cache.use([1, 1, 3])
    cache.core.release(cache.keep([1, 1], PIN))
    cache.core.release(cache.keep([1, 1], SEQUENCE))
    assert cache.core.drain_samples() == [(1, 1, 0, 2), (1, 3, 0, 3)]
    cache.use([4])
    cache.core.evict(2)
    assert cache.core.drain_samples() == [(0, 0, 4, 5)]
    blocker = cache.start(range(2 * 64), publish=False)
    cache.use([5, 5])
    cache.core.evict(1)
    assert cache.core.drain_samples() == [(0, 5, 6, 6)], "block 65"
    cache.core.release(blocker)


def test_what_was_flushed_or_moved_is_no_sample_of_a_life(new_core: NewCore) -> None:
    cache = new_core(70)
    cache.use([1, 1])
    cache.core.flush(None)
    blocker = cache.start([0], publish=False)
    cache.use([2, 2])
    cache.core.release(blocker)
    assert cache.core.resize(2) == [(2, 1)]
    cache.core.evict(1)
    assert cache.core.drain_samples() == []


def test_nothing_is_known_of_what_was_at_a_number_before(new_core: NewCore) -> None:
    cache = new_core(70)
    cache.use([1, 1])
    cache.core.evict(1)
    assert len(cache.core.drain_samples()) == 1
    blockers = [cache.start(range(2 * blocks), publish=False) for blocks in (1, 63)]
    cache.use([2, 2])  # block 65
    for blocker in blockers:
        cache.core.release(blocker)
    assert cache.core.resize(10) == [(65, 1)]
    cache.core.resize(70)
    blockers = [cache.start(range(2 * blocks), publish=False) for blocks in (63, 1)]
    cache.use([3, 3])  # block 66
    cache.core.release(blockers[1])
    assert cache.core.resize(66) == [(66, 65)]
    assert cache.core.evict(2) == 2
    assert cache.core.drain_samples() == []


def test_a_few_thousand_samples_are_kept(new_core: NewCore) -> None:
    cache = new_core(2, 1)
    for token in range(5000):
        cache.use([token])
    samples = cache.core.drain_samples()
    assert len(samples) == 4096
    assert samples[-1] == (0, 4998, 4999, 4999)
