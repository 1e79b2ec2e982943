"""What users of serving engines complain about, turned into promises: capacity.

- A request that can never fit is told so at once, with the figure; the others go on.
- Capacity is exact to the block and the token: the null block is not part of it.
- A decode that outgrows the pool is told, and loses nothing by it.
- An idle pool admits or rejects; nothing that is merely kept makes a request wait for ever.
- Whatever counts as evictable can be evicted, whoever is copying.
- A resize between the answer and the start is a stale plan, not a leak.
- Operations on several blocks take all of them or none.
- Blocks given back by a preemption can be used in the same step.
"""

from __future__ import annotations

import numpy as np
import pytest
from kv_scenes import CORES, RED, Scene, letters

from kvcache import Fits, NeverFits, NotNow
from kvcache.core import CoreChoice
from kvcache.errors import OutOfBlocksError, PoolInUseError, StalePlanError
from kvcache.tenants import TenantShare


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> CoreChoice:
    return request.param


def test_what_can_never_fit_is_refused_at_once_and_others_go_on(core: CoreChoice) -> None:
    scene = Scene(4, 4, core=core)
    running = scene.run(letters("a"))
    answer = scene.admit(scene.mirror([1] * 17))
    assert answer == NeverFits(needed_blocks=5, total_blocks=4, limit_tokens=16)
    assert scene.append(running, 1)
    assert scene.start(scene.mirror([2] * 8))


@pytest.mark.parametrize("block_tokens", [1, 2, 16, 255, 256])
def test_capacity_is_exact_at_one_block_less_and_one_token_more(
    core: CoreChoice, block_tokens: int
) -> None:
    for tokens, fits in [(2, True), (3, True), (4, False)]:
        scene = Scene(3, block_tokens, core=core)
        answer = scene.admit(scene.mirror([1] * (tokens * block_tokens)))
        assert isinstance(answer, Fits if fits else NeverFits)
    scene = Scene(3, block_tokens, core=core)
    assert isinstance(scene.admit(scene.mirror([1] * (3 * block_tokens + 1))), NeverFits)
    whole = scene.run([1] * (3 * block_tokens))
    assert sorted(scene.tables[whole.sequence_id]) == [1, 2, 3]


def test_a_quota_and_the_floors_of_others_bound_what_can_ever_fit(core: CoreChoice) -> None:
    shares = {"batch": TenantShare(quota_blocks=2), "warm": TenantShare(floor_blocks=3)}
    scene = Scene(8, 4, core=core, tenants=shares)
    batch = scene.admit(scene.mirror([1] * 9, b"batch", tenant="batch"))
    assert batch == NeverFits(needed_blocks=3, total_blocks=8, limit_tokens=8)
    other = scene.admit(scene.mirror([1] * 21))
    assert other == NeverFits(needed_blocks=6, total_blocks=8, limit_tokens=20)
    assert isinstance(scene.admit(scene.mirror([1] * 20)), Fits)


def test_a_decode_that_outgrows_the_pool_is_told_and_loses_nothing(core: CoreChoice) -> None:
    scene = Scene(2, 4, core=core)
    lone = scene.run([1] * 8)
    before = scene.tables[lone.sequence_id]
    for _ in range(3):
        assert not scene.append(lone, 1), "no room, and nobody to take it from"
    assert scene.tables[lone.sequence_id] == before
    assert scene.manager.stats().evicted_blocks == 0
    scene.release(lone)
    assert scene.start(scene.mirror([2] * 8)), "the next one is served"


def test_an_idle_pool_admits_or_rejects_whatever_is_kept_in_it(core: CoreChoice) -> None:
    """Cached blocks, expectations, kept prefixes, lapsed pins and lost transfers are no load."""
    scene = Scene(8, 4, core=core)
    scene.serve(letters("ab"))
    scene.expect(scene.mirror([*letters("ab"), 1]))
    kept = scene.run(letters("cd"))
    scene.preempt(kept, keep_blocks=2)
    scene.pin(RED, letters("ab"), seconds=1.0)
    lease = scene.begin_load(RED, letters("xyz"), seconds=1.0)
    assert lease is not None
    scene.now += 1.0  # nobody calls `expire`
    answer = scene.manager.admit(scene.mirror([7] * 32, headroom=3).request())
    assert isinstance(answer, Fits)
    assert scene.manager.begin(answer) == 0
    assert isinstance(scene.manager.admit(scene.mirror([7] * 33).request()), NeverFits)


def test_what_was_kept_for_a_sequence_never_keeps_it_out(core: CoreChoice) -> None:
    """Its own prefix, useless since a flush, goes before anything that others expect."""
    scene = Scene(10, 4, core=core, tenants={"batch": TenantShare(quota_blocks=6)})
    other = scene.run(letters("a"))
    scene.preempt(other, keep_blocks=1)
    kept = scene.run(letters("wxyz"), b"batch", tenant="batch")
    scene.preempt(kept, keep_blocks=4)
    scene.flush(b"batch")
    assert scene.start(kept)
    stats = scene.manager.stats()
    assert (stats.dropped_expectations, stats.expected, stats.held) == (1, 1, 4)


def test_what_counts_as_evictable_can_be_evicted_while_transfers_run(core: CoreChoice) -> None:
    """A copy under way keeps its own blocks, not the leaves above or beside them."""
    scene = Scene(8, 4, core=core)
    scene.serve(letters("abcd"))
    scene.serve(letters("wx"))
    assert scene.begin_store(RED, letters("ab"), seconds=10.0) is not None
    stats = scene.manager.stats()
    assert (stats.free, stats.cached, stats.storing) == (2, 4, 2)
    new = scene.mirror([1] * 24)
    assert scene.start(new), "free and cached together are six blocks"
    assert scene.manager.lookup(RED, np.array([*letters("abcd"), 0], np.int32)) == 8


def test_a_shrink_between_answer_and_start_is_a_stale_plan_and_no_leak(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    scene.serve(letters("ab"))
    wanted = scene.mirror([*letters("ab"), *[1] * 20])
    assert isinstance(scene.admit(wanted), Fits)
    assert scene.resize(6)
    plan = wanted.plan
    assert plan is not None
    with pytest.raises(StalePlanError):
        scene.manager.begin(plan)
    scene.settle()
    assert scene.resize(7)
    assert scene.start(wanted), "with room again it starts"
    scene.release(wanted)
    assert scene.manager.stats().held == 0


def test_a_plan_survives_a_resize_that_moves_its_hits(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    low, high = scene.run([1] * 16, publish=False), scene.run(letters("ab"))
    assert scene.tables[high.sequence_id] == [5, 6]
    scene.release(low)
    wanted = scene.mirror([*high.tokens, 5])
    assert isinstance(scene.admit(wanted), Fits)
    assert scene.resize(5)
    assert scene.tables[high.sequence_id] == [5, 1]
    assert scene.begin(wanted)


def test_a_fork_without_room_changes_nothing(core: CoreChoice) -> None:
    scene = Scene(3, 4, core=core)
    parent = scene.run([1] * 10)
    before = scene.manager.stats()
    with pytest.raises(OutOfBlocksError):
        scene.manager.fork(parent.sequence_id, 99)
    assert scene.manager.stats() == before
    scene.settle()
    with pytest.raises(Exception, match="99"):
        scene.manager.block_table(99)


def test_a_load_and_a_shrink_without_room_change_nothing(core: CoreChoice) -> None:
    scene = Scene(4, 4, core=core)
    scene.run(letters("abc"))
    before = scene.manager.stats()
    assert scene.begin_load(RED, letters("xy"), seconds=1.0) is None
    with pytest.raises(PoolInUseError) as caught:
        scene.manager.resize(3)
    assert (caught.value.wanted_blocks, caught.value.in_use_blocks) == (2, 3)
    assert scene.manager.stats() == before
    scene.settle()


def test_blocks_of_a_preempted_sequence_serve_another_in_the_same_step(core: CoreChoice) -> None:
    scene = Scene(4, 4, core=core)
    victim, growing = scene.run(letters("ab")), scene.run(letters("xy"))
    assert not scene.append(growing, 1)
    scene.preempt(victim, keep_blocks=0)
    assert scene.append(growing, 1)
    answer = scene.admit(victim)
    assert isinstance(answer, NotNow), "its last block went to the other one"
    assert answer.short_blocks == 1
