"""What users of serving engines complain about, turned into promises: what is cached.

- A flush is complete: nothing that was computed, loaded or forked before it is hit afterwards,
  and who runs goes on.
- Other weights, another salt, another adapter: never a hit. The same: always a hit.
- Output does not depend on the cache: every slot has the K and V of its own token, and a model
  that looks at them says the same with hits, partial copies, forks, preemption and resizing.
- Sessions that take turns keep their hits.
- A block that is used again has nothing of what it was.
- A sweep of ten times the pool leaves a tenant its floor, and a higher level its blocks.
- What a waiting request will hit is evicted last.
- Who sees the same decides the same: nothing depends on time, hashes or addresses.
- Prefixes that are shorter than a block, or differ inside one, are hit by copying.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from kv_scenes import BLUE, CORES, RED, Scene, letters
from kv_world import Mirror

from kvcache import namespace_key
from kvcache.core import CoreChoice
from kvcache.tenants import TenantShare


@pytest.fixture(params=CORES)
def core(request: pytest.FixtureRequest) -> CoreChoice:
    return request.param


def found(scene: Scene, tokens: list[int], namespace: bytes = RED) -> int:
    return scene.manager.lookup(namespace, np.array([*tokens, 0], np.int32))


def test_nothing_from_before_a_flush_is_ever_hit_again(core: CoreChoice) -> None:
    scene = Scene(16, 4, core=core)
    scene.serve(letters("ab"))
    running = scene.run(letters("cd"))
    lease = scene.begin_load(RED, letters("xy"), seconds=9.0)
    assert lease is not None
    scene.last_id += 1
    child = scene.fork(running, scene.last_id)
    assert child is not None
    scene.pin(RED, letters("ab"), seconds=9.0)
    scene.flush(RED)
    for token in letters("e"):
        assert scene.append(running, token)
    scene.commit(running, 12)
    scene.commit(child, 8)
    scene.finish_load(lease, loaded_blocks=2)
    scene.release(running)
    scene.release(child)
    scene.advance(9.0)
    for text in ("ab", "cde", "xy"):
        assert found(scene, letters(text)) == 0
    assert scene.manager.stats().free == 16
    scene.serve(letters("ab"))
    assert found(scene, letters("ab")) == 8, "what is computed anew is shared again"


def test_a_flush_leaves_running_sequences_their_blocks(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    running, other = scene.run(letters("ab")), scene.run(letters("ab"), BLUE)
    table = scene.tables[running.sequence_id]
    scene.flush(RED)
    assert scene.tables[running.sequence_id] == table
    assert scene.append(running, 1)
    newcomer = scene.run(letters("ab"))
    assert not set(scene.tables[newcomer.sequence_id]) & set(table)
    assert found(scene, letters("ab"), BLUE) == 8
    scene.release(other)


@pytest.mark.parametrize("field", ["tenant", "salt", "adapter", "fingerprint"])
def test_another_salt_adapter_or_weights_share_nothing_and_the_same_ones_all(
    core: CoreChoice, field: str
) -> None:
    scene = Scene(16, 4, core=core)
    names = {"tenant": "t", "salt": "s", "adapter": "a", "fingerprint": "f"}
    mine = namespace_key(**names)
    scene.serve(letters("abc"), mine)
    theirs = namespace_key(**{**names, field: "other"})
    assert found(scene, letters("abc"), theirs) == 0
    assert found(scene, letters("abc"), namespace_key(**names)) == 12


@pytest.mark.parametrize(
    "other",
    [{"adapter": "x"}, {"tenant": "x"}, {"salt": "x\x00"}, {"tenant": "\x01", "salt": "x"}],
)
def test_nothing_can_be_named_so_that_it_poses_as_a_salt(
    core: CoreChoice, other: dict[str, str]
) -> None:
    scene = Scene(8, 4, core=core)
    scene.serve(letters("ab"), namespace_key(salt="x"))
    assert found(scene, letters("ab"), namespace_key(**other)) == 0
    assert found(scene, letters("ab"), namespace_key(salt="x")) == 8


# --- a model that reads what the cache says ----------------------------------------------


def next_token(scene: Scene, mirror: Mirror) -> int:
    """A model whose logits depend on every slot it attends to."""
    table = scene.manager.block_table(mirror.sequence_id)
    slots = scene.memory.slots[table].reshape(-1)[: mirror.computed]
    weights = np.arange(1, slots.size + 1, dtype=np.uint64)
    return int((slots * weights).sum() >> np.uint64(33)) % 5


def generate(scene: Scene, mirror: Mirror, count: int, disturb: Callable[[int], None]) -> list[int]:
    start = len(mirror.tokens)
    for number in range(count):
        disturb(number)
        if mirror.sequence_id not in scene.live:
            assert scene.start(mirror)
        scene.commit(mirror, len(mirror.tokens))
        assert scene.append(mirror, next_token(scene, mirror))
    return mirror.tokens[start:]


PROMPT = [*letters("abc", 3), 5, 6]


def alone(core: CoreChoice) -> list[int]:
    scene = Scene(16, 3, core=core, partial_reuse_tokens=None)
    return generate(scene, scene.mirror(PROMPT, use_cache=False), 12, lambda _: None)


def test_output_is_the_same_with_hits_and_with_partial_copies(core: CoreChoice) -> None:
    wanted = alone(core)
    assert len(set(wanted)) > 1
    scene = Scene(16, 3, core=core, partial_reuse_tokens=1)
    scene.serve([*PROMPT[:8], 1, 1, 1, 1])  # two blocks, and two tokens of the third
    assert generate(scene, scene.mirror(PROMPT), 12, lambda _: None) == wanted
    assert scene.manager.stats().hit_tokens == 8
    assert scene.manager.stats().partial_hit_tokens == 2
    assert generate(scene, scene.mirror(PROMPT), 12, lambda _: None) == wanted


def test_output_is_the_same_through_preemption_forks_and_resizing(core: CoreChoice) -> None:
    wanted = alone(core)
    scene = Scene(20, 3, core=core)
    other = scene.run([7] * 12, publish=False)
    mirror = scene.mirror(PROMPT)
    children: list[Mirror] = []

    def disturb(number: int) -> None:
        match number:
            case 2:
                scene.preempt(mirror, keep_blocks=0)
                scene.serve([8] * 24)
            case 4:
                scene.preempt(mirror, keep_blocks=2)
                scene.serve([9] * 30)
            case 6:
                scene.commit(mirror, len(mirror.tokens))
                scene.last_id += 1
                child = scene.fork(mirror, scene.last_id)
                assert child is not None
                children.append(child)
            case 7:
                scene.release(other)
                assert scene.resize(14)
            case 9:
                assert scene.resize(20)

    assert generate(scene, mirror, 12, disturb) == wanted
    (child,) = children
    rest = 12 - (len(child.tokens) - len(PROMPT))
    assert generate(scene, child, rest, lambda _: None) == wanted[-rest:]


# --- what stays ---------------------------------------------------------------------------


def test_sessions_that_take_turns_keep_their_hits(core: CoreChoice) -> None:
    """Eight sessions that grow turn by turn in a pool that they fill by three quarters."""
    scene = Scene(64, 4, core=core)
    sessions = [[number + 10] * 8 for number in range(8)]
    for turn in range(4):
        for session in sessions:
            mirror = scene.mirror(session)
            assert scene.start(mirror)
            if turn:
                assert mirror.computed >= len(session) - 4, "all but the new question is a hit"
            scene.commit(mirror, len(mirror.tokens))
            scene.release(mirror)
            session += [turn] * 4
    assert scene.manager.stats().evicted_blocks == 0


def test_a_block_that_is_used_again_has_nothing_of_what_it_was(core: CoreChoice) -> None:
    scene = Scene(3, 4, core=core)
    scene.serve(letters("abc"), retention=7)
    scene.serve(letters("xyz"))
    for text in ("a", "ab", "abc"):
        assert found(scene, letters(text)) == 0
    assert found(scene, letters("xyz")) == 12
    scene.serve(letters("a"))  # evicts: a level of 7 that stuck to the block would save it
    assert found(scene, letters("xyz")) == 8


def test_a_sweep_of_ten_pools_leaves_a_tenant_its_floor(core: CoreChoice) -> None:
    shares = {"warm": TenantShare(floor_blocks=4)}
    scene = Scene(16, 4, core=core, tenants=shares)
    session = letters("abcd")
    scene.serve(session, BLUE, tenant="warm")
    for number in range(20):
        scene.serve([number] * 32)
    assert found(scene, session, BLUE) == 16
    assert scene.manager.tenant_stats("warm").evicted_for_others == 0


def test_without_a_floor_the_sweep_takes_what_was_used_once(core: CoreChoice) -> None:
    scene = Scene(16, 4, core=core)
    scene.serve(letters("abcd"), BLUE)
    for number in range(20):
        scene.serve([number] * 32)
    assert found(scene, letters("abcd"), BLUE) == 0


def test_a_tenant_over_its_quota_evicts_its_own_blocks(core: CoreChoice) -> None:
    shares = {"batch": TenantShare(quota_blocks=4)}
    scene = Scene(16, 4, core=core, tenants=shares)
    scene.serve(letters("ab"), BLUE)
    for number in range(10):
        scene.serve([number] * 16, b"batch", tenant="batch")
    assert found(scene, letters("ab"), BLUE) == 8
    assert scene.manager.stats().free == 10, "the others' room was never touched"


def test_a_higher_level_outlasts_recency(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    scene.serve(letters("ab"), retention=3)
    for number in range(12):
        scene.serve([number] * 8)
    assert found(scene, letters("ab")) == 8


def test_a_hit_of_a_higher_level_raises_that_of_the_block(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    scene.serve(letters("ab"))
    scene.serve([*letters("ab"), 1], retention=3)
    for number in range(12):
        scene.serve([number] * 8)
    assert found(scene, letters("ab")) == 8


def test_a_level_ends_with_its_time_to_live_and_not_before(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core, retention_ttl_seconds=(0.0, *[60.0] * 7))
    scene.serve(letters("ab"), retention=3)
    scene.advance(59.0)
    for number in range(6):
        scene.serve([number] * 8)
    assert found(scene, letters("ab")) == 8
    scene.advance(3.0)
    for number in range(6):
        scene.serve([10 + number] * 8)
    assert found(scene, letters("ab")) == 0


def test_what_a_waiting_request_will_hit_is_evicted_last(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    scene.serve(letters("ab"))
    wanted = scene.mirror([*letters("ab"), 1])
    scene.expect(wanted)
    scene.serve([7] * 24)
    scene.serve([8] * 24)
    assert found(scene, letters("ab")) == 8
    assert scene.start(scene.mirror([9] * 32)), "but it keeps nobody from starting"
    assert found(scene, letters("ab")) == 0


def test_a_prefix_that_ends_inside_a_block_is_hit_by_a_copy(core: CoreChoice) -> None:
    scene = Scene(8, 64, core=core, partial_reuse_tokens=16)
    scene.serve([1] * 64)
    near = scene.mirror([*[1] * 40, 2, 2])
    assert scene.start(near)
    assert near.computed == 40
    far = scene.mirror([*[1] * 15, 2, 2])
    assert scene.start(far)
    assert far.computed == 0, "fewer tokens than a copy is worth"


def test_hits_of_a_returning_sequence_are_no_hits_of_the_cache(core: CoreChoice) -> None:
    scene = Scene(8, 4, core=core)
    mirror = scene.run([*letters("abc"), 1])
    scene.preempt(mirror, keep_blocks=0)
    assert scene.start(mirror)
    stats = scene.manager.stats()
    assert (stats.hit_tokens, stats.resumed_hit_tokens) == (0, 12)


def test_who_sees_the_same_decides_the_same(core: CoreChoice) -> None:
    """Ranks of one model need not talk about what to evict, and whom to admit."""

    def life() -> tuple[list[object], list[list[int]]]:
        scene = Scene(12, 4, core=core)
        draw = np.random.default_rng(3)
        tables = []
        for _ in range(120):
            prompt = [*letters("abcdef"[: draw.integers(0, 4)]), *draw.integers(0, 3, 7).tolist()]
            mirror = scene.mirror(prompt)
            while not scene.start(mirror):
                scene.release(scene.live[min(scene.live)])
            scene.commit(mirror, len(prompt))
            tables.append(scene.tables[mirror.sequence_id])
        return list(scene.log.since(0)), tables

    assert life() == life()
