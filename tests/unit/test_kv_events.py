"""The event stream of the index and what follows it."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcache import AdmissionRequest, CacheManager, Fits
from kvcache.errors import InvalidArgumentError
from kvcache.events import (
    Cleared,
    EventLog,
    EventsLostError,
    IndexReplica,
    IndexSnapshot,
    Moved,
    Removed,
    ReplicaError,
    Stored,
)

A, B = b"a", b"b"
EMPTY = IndexSnapshot(0, ())


def tokens(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def start(
    manager: CacheManager, sequence: int, prompt: NDArray[np.int32], namespace: bytes = A
) -> None:
    answer = manager.admit(AdmissionRequest(sequence, prompt, namespace))
    assert isinstance(answer, Fits)
    manager.begin(answer)


def use(manager: CacheManager, sequence: int, prompt: NDArray[np.int32], ns: bytes = A) -> None:
    start(manager, sequence, prompt, ns)
    manager.commit(sequence, prompt.size)
    manager.release(sequence)


def test_events_tell_what_happened_in_order() -> None:
    log = EventLog()
    manager = CacheManager(5, 2, events=log)
    use(manager, 1, tokens(1, 2, 3, 4, 5))
    use(manager, 2, tokens(1, 2, 6, 7))
    use(manager, 3, tokens(8, 8, 9, 9), B)
    manager.flush(A)
    manager.flush(None)
    assert log.since(0) == (
        Stored(1, A, None, (1, 2), (1, 2, 3, 4)),
        Stored(2, A, 1, (3,), (6, 7)),
        Removed(3, (2,)),
        Stored(4, B, None, (2, 4), (8, 8, 9, 9)),
        Cleared(5, A),
        Cleared(6, None),
    )


def test_blocks_are_removed_from_the_end_of_a_prefix_on() -> None:
    log = EventLog()
    manager = CacheManager(9, 1, events=log)
    replica = IndexReplica(manager.snapshot(), 1)
    use(manager, 1, tokens(1, 2, 3, 4, 5))
    use(manager, 2, tokens(6, 7, 8, 9, 10, 11, 12))
    assert log.since(1)[0] == Removed(2, (5, 4, 3, 2))
    for event in log.since(0):
        replica.apply(event)
    assert replica.match(A, tokens(1, 2, 3)) == [1]


def test_a_block_that_was_known_already_is_stored_once() -> None:
    log = EventLog()
    manager = CacheManager(9, 1, events=log)
    start(manager, 1, tokens(1, 2))
    start(manager, 2, tokens(1, 2, 3))
    manager.commit(1, 2)
    manager.commit(2, 3)
    first, second = log.since(0)
    assert first == Stored(1, A, None, (1, 2), (1, 2))
    assert second == Stored(2, A, 2, (5,), (3,))


def test_what_does_not_change_the_index_is_no_event() -> None:
    log = EventLog()
    manager = CacheManager(9, 4, events=log)
    use(manager, 1, tokens(1, 2, 3))
    use(manager, 2, tokens(1, 2, 3, 4))
    use(manager, 3, tokens(1, 2, 3, 4))
    assert log.last_number == 1


def test_lost_events_are_told_and_a_snapshot_helps() -> None:
    log = EventLog(capacity=2)
    manager = CacheManager(9, 1, events=log)
    replica = IndexReplica(manager.snapshot(), 1)
    for sequence in range(3):
        use(manager, sequence, tokens(sequence))
    with pytest.raises(EventsLostError, match="from 1 are wanted, the first kept is 2") as caught:
        log.since(replica.number)
    assert (caught.value.after, caught.value.first_kept) == (0, 2)
    assert [event.number for event in log.since(1)] == [2, 3]
    replica = IndexReplica(manager.snapshot(), 1)
    assert log.since(replica.number) == ()
    assert replica.match(A, tokens(2)) == [3]
    with pytest.raises(InvalidArgumentError, match="after is 4"):
        log.since(4)
    with pytest.raises(InvalidArgumentError, match="after is -1"):
        log.since(-1)
    with pytest.raises(InvalidArgumentError, match="capacity is 0"):
        EventLog(0)


def test_a_block_that_was_cleared_begins_anew() -> None:
    replica = IndexReplica(EMPTY, 1)
    for event in (
        Stored(1, A, None, (1, 2), (1, 2)),
        Stored(2, B, None, (3,), (1,)),
        Cleared(3, A),
        Stored(4, A, None, (1,), (5,)),
        Removed(5, (1,)),
    ):
        replica.apply(event)
    assert list(replica.blocks) == [3]


def test_a_replica_matches_whole_blocks_of_its_namespace() -> None:
    replica = IndexReplica(EMPTY, 2)
    replica.apply(Stored(1, A, None, (5, 6), (1, 2, 3, 4)))
    replica.apply(Stored(2, A, 5, (7,), (9, 9)))
    assert replica.match(A, tokens(1, 2, 3, 4, 5)) == [5, 6]
    assert replica.match(A, tokens(1, 2, 3)) == [5]
    assert replica.match(A, tokens(1, 2, 9, 9)) == [5, 7]
    assert replica.match(A, tokens(3, 4)) == []
    assert replica.match(B, tokens(1, 2)) == []


def test_a_replica_follows_blocks_to_their_new_ids() -> None:
    replica = IndexReplica(EMPTY, 1)
    for event in (
        Stored(1, A, None, (5, 9), (1, 2)),
        Stored(2, A, 5, (7,), (3,)),
        Stored(3, B, None, (2,), (1,)),
        Moved(4, ((6, 1), (7, 3), (9, 4))),  # block 6 is in nobody's index
        Moved(5, ((8, 6),)),
    ):
        replica.apply(event)
    assert replica.match(A, tokens(1, 2)) == [5, 4]
    assert replica.match(A, tokens(1, 3)) == [5, 3]
    replica.apply(Stored(6, A, 4, (9,), (4,)))
    assert replica.match(A, tokens(1, 2, 4)) == [5, 4, 9]
    replica.apply(Moved(7, ((5, 1),)))
    replica.apply(Removed(8, (9, 4, 3, 1)))
    assert list(replica.blocks) == [2]


def test_the_log_of_a_resized_pool_leads_to_its_snapshot() -> None:
    log = EventLog()
    manager = CacheManager(9, 2, events=log)
    replica = IndexReplica(manager.snapshot(), 2)
    use(manager, 1, tokens(1, 2, 3, 4, 5, 6))
    start(manager, 2, tokens(1, 2, 7, 8))
    manager.commit(2, 4)
    manager.resize(4)
    for event in log.since(0):
        replica.apply(event)
    assert replica.blocks == IndexReplica(manager.snapshot(), 2).blocks
    assert any(isinstance(event, Moved) for event in log.since(0))
    assert replica.match(A, tokens(1, 2, 7, 8)) == manager.block_table(2).tolist()


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Removed(2, (3,)), "event 2: the next one is 3"),
        (Removed(4, (3,)), "event 4: the next one is 3"),
        (Removed(3, (2,)), "block 2 is not known, or others continue it"),
        (Removed(3, (4,)), "block 4 is not known"),
        (Removed(3, (3, 3)), "block 3 is not known"),
        (Stored(3, A, 4, (5,), (1,)), "block 4 is continued but not known"),
        (Stored(3, A, None, (3,), (8,)), "block 3 or its tokens are known"),
        (Stored(3, A, 2, (9,), (3,)), "block 9 or its tokens are known"),
        (Moved(3, ((3, 1),)), "block 1 is in the place of a moved one"),
        (Moved(3, ((8, 2),)), "block 2 is in the place of a moved one"),
    ],
)
def test_an_event_that_does_not_follow_is_an_error(
    event: Stored | Removed | Moved, reason: str
) -> None:
    replica = IndexReplica(EMPTY, 1)
    replica.apply(Stored(1, A, None, (1, 2), (1, 2)))
    replica.apply(Stored(2, A, 2, (3,), (3,)))
    with pytest.raises(ReplicaError, match=reason):
        replica.apply(event)
