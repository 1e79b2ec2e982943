"""What users of serving engines complain about, turned into promises: aborts and transfers.

- An abort in any state gives everything back, and a second one does nothing.
- A transfer whose completion is lost holds its blocks until its deadline and not longer.
- A completion that comes late, twice, or for a request that is gone, harms nobody and leaks
  nothing.
- Blocks that a transfer reads or writes are nobody else's before it has ended.
- Loads that are parked never keep the queue from moving.
- What the index adopted is not freed by the sequence that computed it.
- Two requests that computed the same end with one copy and two valid tables.
- Lookups leave no pins, and pins end.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kv_scenes import CORES, RED, Scene, letters
from kv_world import Mirror

from kvcache import Fits, NotNow
from kvcache.core import CoreChoice
from kvcache.errors import UnknownSequenceError


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> CoreChoice:
    return request.param


PROMPT = [*letters("abcd"), 1, 2]


def waiting(scene: Scene) -> Mirror:
    return scene.mirror(PROMPT)


def planned(scene: Scene) -> Mirror:
    mirror = scene.mirror(PROMPT)
    scene.admit(mirror)
    return mirror


def expected(scene: Scene) -> Mirror:
    scene.serve(letters("ab"))
    mirror = scene.mirror(PROMPT)
    scene.expect(mirror)
    return mirror


def in_prefill(chunks: int) -> Callable[[Scene], Mirror]:
    def begin(scene: Scene) -> Mirror:
        mirror = scene.mirror(PROMPT)
        assert scene.start(mirror)
        scene.commit(mirror, chunks * 5)
        return mirror

    return begin


def running(scene: Scene) -> Mirror:
    mirror = scene.run(PROMPT)
    assert scene.append(mirror, 9)
    return mirror


def forked(scene: Scene) -> Mirror:
    parent = scene.run(PROMPT)
    scene.last_id += 1
    child = scene.fork(parent, scene.last_id)
    assert child is not None
    scene.release(parent)
    return child


def preempted(scene: Scene) -> Mirror:
    mirror = running(scene)
    scene.preempt(mirror, keep_blocks=0)
    return mirror


def trimmed(scene: Scene) -> Mirror:
    mirror = running(scene)
    scene.preempt(mirror, keep_blocks=2)
    return mirror


def swapped(scene: Scene) -> Mirror:
    mirror = running(scene)
    scene.add_host(host_blocks=20, blocks_a_poll=1)
    assert scene.swap(mirror) == 16
    return mirror


def swapped_and_loading(scene: Scene) -> Mirror:
    mirror = swapped(scene)
    scene.serve([7] * 48)
    assert scene.prefetch(RED, mirror.tokens) is not None
    scene.poll()
    assert scene.manager.stats().loading == 4
    return mirror


def finished(scene: Scene) -> Mirror:
    return scene.serve(PROMPT)


@pytest.mark.parametrize(
    "reach",
    [
        waiting,
        planned,
        expected,
        *(pytest.param(in_prefill(chunks), id=f"after {chunks} chunks") for chunks in (0, 1, 3)),
        running,
        forked,
        preempted,
        trimmed,
        swapped,
        swapped_and_loading,
        finished,
    ],
)
def test_an_abort_in_any_state_gives_everything_back_and_twice_is_nothing(
    core: CoreChoice, reach: Callable[[Scene], Mirror]
) -> None:
    scene = Scene(12, 4, core=core)
    mirror = reach(scene)
    for _ in range(2):
        scene.release(mirror)
        scene.forget(mirror)
        if hasattr(scene, "offload"):
            scene.offload.forget(mirror.sequence_id)
            for transfer in scene.transfers.copy():
                scene.cancel(transfer)
        stats = scene.manager.stats()
        assert stats.free + stats.cached == stats.total
        assert stats.live_sequences == stats.reserved == 0
    assert scene.start(scene.mirror([7] * 48)), "the whole pool can be used again"


def test_an_abort_during_a_lost_load_frees_the_blocks_at_the_deadline(core: CoreChoice) -> None:
    scene = Scene(6, 4, core=core)
    lease = scene.begin_load(RED, letters("abcd"), seconds=5.0)
    assert lease is not None
    wanted = scene.mirror([7] * 24)
    scene.advance(4.9)
    assert isinstance(scene.admit(wanted), NotNow), "its blocks may be written to any moment"
    assert scene.manager.stats().loading == 4
    scene.advance(0.1)
    assert scene.manager.stats().free == 6
    assert scene.start(wanted)
    assert scene.manager.stats().expired_loads == 1


def test_a_deadline_is_seen_by_who_needs_the_blocks(core: CoreChoice) -> None:
    """Nobody has to call `expire` for the queue to move."""
    scene = Scene(4, 4, core=core)
    assert scene.begin_load(RED, letters("abcd"), seconds=1.0) is not None
    scene.now += 1.0
    answer = scene.manager.admit(scene.mirror([7] * 16).request())
    assert isinstance(answer, Fits)
    assert scene.manager.begin(answer) == 0


def test_a_late_completion_does_not_touch_who_has_the_blocks_now(core: CoreChoice) -> None:
    scene = Scene(4, 4, core=core)
    lease = scene.begin_load(RED, letters("abcd"), seconds=1.0)
    assert lease is not None
    scene.advance(1.0)
    heir = scene.run([7] * 16)
    scene.finish_load(lease, loaded_blocks=4)  # raises for `blocks`, answers False
    assert scene.manager.stats().late_completions == 1
    assert scene.manager.stats().held == 4
    scene.release(heir)
    assert scene.manager.lookup(RED, np.array([*letters("abcd"), 0], np.int32)) == 0


def test_a_completion_for_a_request_that_is_gone_still_gives_back(core: CoreChoice) -> None:
    scene = Scene(6, 4, core=core)
    wanted = scene.mirror([*letters("abc"), 1])
    lease = scene.begin_load(RED, letters("abc"), seconds=5.0)
    assert lease is not None
    scene.forget(wanted)
    scene.release(wanted)
    scene.finish_load(lease, loaded_blocks=2)
    stats = scene.manager.stats()
    assert (stats.loading, stats.cached, stats.free) == (0, 2, 4)


def test_a_completion_that_comes_twice_counts_once(core: CoreChoice) -> None:
    scene = Scene(6, 4, core=core)
    lease = scene.begin_load(RED, letters("ab"), seconds=5.0)
    assert lease is not None
    scene.finish_load(lease, loaded_blocks=2)
    reader = scene.run([*letters("ab"), 1])
    scene.finish_load(lease, loaded_blocks=2)
    scene.end_lease("load", lease.lease_id)
    assert scene.manager.stats().held == 3
    scene.release(reader)


def test_nobody_gets_a_block_that_a_load_may_write_to(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    lease = scene.begin_load(RED, letters("abc"), seconds=9.0)
    assert lease is not None
    loading = set(lease.blocks.tolist())
    for turn in range(6):
        mirror = scene.run([turn] * 20)
        assert not loading & set(scene.tables[mirror.sequence_id])
        scene.release(mirror)
    assert not scene.start(scene.mirror([99] * 24))
    scene.end_lease("load", lease.lease_id)
    with pytest.raises(UnknownSequenceError):
        _ = lease.blocks


def test_a_block_that_is_being_stored_is_neither_evicted_nor_overwritten(
    core: CoreChoice,
) -> None:
    scene = Scene(6, 4, core=core)
    scene.serve(letters("ab"))
    lease = scene.begin_store(RED, letters("ab"), seconds=9.0)
    assert lease is not None
    blocks = lease.blocks.tolist()
    before = scene.memory.slots[blocks].copy()
    for turn in range(6):
        scene.serve([turn] * 16)
    scene.flush(None)
    scene.serve([9] * 16)
    assert (scene.memory.slots[blocks] == before).all(), "the copy reads what was there"
    scene.end_lease("store", lease.lease_id)
    assert scene.start(scene.mirror([7] * 24))


def test_parked_loads_never_keep_the_queue_from_moving(core: CoreChoice) -> None:
    """Loads take all blocks and none ever completes: each deadline lets the head in."""
    scene = Scene(8, 4, core=core)
    for number in range(4):
        assert scene.begin_load(RED, [number] * 8, seconds=1.0 + number) is not None
    head = scene.mirror([7] * 16)
    waited = 0
    while not scene.start(head):
        scene.advance(1.0)
        waited += 1
    assert waited == 2, "as soon as two of them have given up"


def test_what_the_index_adopted_is_not_freed_by_who_computed_it(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    donor = scene.run(letters("ab"))
    reader = scene.run([*letters("ab"), 1])
    shared = scene.tables[donor.sequence_id]
    scene.release(donor)
    newcomer = scene.run([7] * 20)
    assert not set(shared) & set(scene.tables[newcomer.sequence_id])
    assert scene.tables[reader.sequence_id][:2] == shared


def test_two_that_computed_the_same_share_one_copy_and_both_can_read_it(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    first, second = scene.mirror(letters("abc")), scene.mirror(letters("abc"))
    assert scene.start(first)
    assert scene.start(second)
    scene.commit(first, 12)
    scene.commit(second, 12)  # its table is rewritten, the content is compared
    assert scene.tables[first.sequence_id] == scene.tables[second.sequence_id]
    assert scene.manager.stats().held == 3
    assert scene.manager.stats().deduplicated_blocks == 3


def test_many_lookups_leave_no_pins(core: CoreChoice) -> None:
    scene = Scene(12, 4, core=core)
    scene.serve(letters("abcd"))
    generator = np.random.default_rng(7)
    before = scene.manager.stats()
    for number in range(300):
        tokens = [*letters("abcd")[: generator.integers(0, 17)], 5]
        scene.manager.lookup(RED, np.array(tokens, np.int32))
        scene.admit(Mirror(1000 + number, RED, tokens))
        scene.manager.pending_prefix(Mirror(1000 + number, RED, tokens).request())
    assert scene.manager.stats() == before
    assert before.pinned == before.expected == before.held == 0


def test_a_pin_ends_at_its_deadline_and_holds_until_then(core: CoreChoice) -> None:
    scene = Scene(6, 4, core=core)
    scene.serve(letters("ab"))
    pin_id = scene.pin(RED, letters("ab"), seconds=3.0)
    assert pin_id is not None
    scene.serve([7] * 16)
    scene.serve([8] * 16)
    assert scene.manager.lookup(RED, np.array([*letters("ab"), 0], np.int32)) == 8
    assert not scene.start(scene.mirror([9] * 24))
    scene.advance(3.0)
    scene.unpin(pin_id)  # False: it is over
    assert scene.start(scene.mirror([9] * 24))
