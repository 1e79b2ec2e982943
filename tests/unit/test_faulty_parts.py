"""What the wrappers do to a runner, a device, an arena and a tier."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcache.errors import MemoryShortError
from kvcache.layout import KVDtype, KVLayout
from kvcache.tiers import BlockKey, Tier
from service.device.cpu import CpuDevice
from service.device.errors import DeviceLostError, DeviceOutOfMemoryError
from service.device.owner import Owner
from service.engine.errors import StartError
from service.engine.faulty.runner import FaultyRunner
from service.engine.faulty.schedule import FaultSchedule
from service.engine.faulty.wiring import with_faults
from service.engine.messages import FaultFired, Inject, OrderedFault
from service.engine.runner import StepBatch
from service.engine.seams import Seams, plain_seams
from service.faults.plan import (
    Balloon,
    FailAllocation,
    Fault,
    LoseDevice,
    LoseTransfer,
    SlowDevice,
)

OPERATORS = 40  # of a step
BATCH = StepBatch(
    token_ids=np.array([5, 6, 7], np.int32),
    positions=np.array([0, 1, 2], np.int32),
    slots=np.array([16, 17, 18], np.int64),
    query_starts=np.array([0, 3], np.int32),
    context_lens=np.array([3], np.int32),
    block_tables=np.array([[1]], np.int32),
    logit_rows=np.array([2], np.int32),
)


class CountedOperators:
    """Operators of a runner that is none of torch's."""

    def __init__(self) -> None:
        self._before: Callable[[int], None] | None = None
        self._number = 0

    @contextlib.contextmanager
    def watch(self, before: Callable[[int], None]) -> Iterator[None]:
        self._before, self._number = before, 0
        try:
            yield
        finally:
            self._before = None

    def operate(self) -> None:
        if self._before is not None:
            self._before(self._number)
            self._number += 1


class StepRunner:
    """Computes a step operator by operator; translates errors as the real one does."""

    vocab_size = 4

    def __init__(self, operators: CountedOperators) -> None:
        self._operators = operators
        self.is_short = False  # of memory: no step begins
        self.started = 0
        self.done: list[int] = []  # operators of each step

    def step_bytes(self, tokens: int, logit_rows: int, context_tokens: int) -> int:
        return 1000 * tokens + 100 * logit_rows + context_tokens

    def forward(self, _batch: StepBatch) -> NDArray[np.float32]:
        self.started += 1
        self.done.append(0)
        if self.is_short:
            raise DeviceOutOfMemoryError(Owner.ACTIVATIONS, 1, 0, None)
        failure: Exception | None = None
        try:
            for _ in range(OPERATORS):
                self._operators.operate()
                self.done[-1] += 1
        except RuntimeError as error:
            failure = DeviceOutOfMemoryError(Owner.ACTIVATIONS, 1, None, None)
            if "DefaultCPUAllocator" not in str(error):
                failure = DeviceLostError(str(error))
        if failure is not None:
            raise failure
        return np.zeros((1, 4), np.float32)


@dataclasses.dataclass
class Scene:
    """A runner with faults, and all that it did."""

    runner: FaultyRunner
    inner: StepRunner
    schedule: FaultSchedule
    fired: list[tuple[int, int]]  # with the number of steps that had begun
    beats: list[int]
    now: list[float]

    def order(self, *faults: Fault) -> None:
        self.schedule.replace(OrderedFault(i, 0.0, fault) for i, fault in enumerate(faults))

    def forward(self) -> NDArray[np.float32]:
        return self.runner.forward(BATCH)


@pytest.fixture
def scene() -> Scene:
    operators = CountedOperators()
    inner = StepRunner(operators)
    schedule = FaultSchedule()
    fired: list[tuple[int, int]] = []
    beats: list[int] = []
    now = [0.0]
    runner = FaultyRunner(
        inner,
        CpuDevice(10_000, available_bytes=lambda: 1 << 40),
        schedule,
        operators.watch,
        fired=lambda fault_id: fired.append((fault_id, inner.started)),
        beat=lambda: beats.append(1),
        clock=lambda: now[0],
    )
    return Scene(runner, inner, schedule, fired, beats, now)


# --- steps ---


def test_a_runner_without_orders_is_the_runner(scene: Scene) -> None:
    assert scene.forward().shape == (1, 4)
    assert scene.runner.vocab_size == 4
    assert scene.runner.step_bytes(1, 2, 3) == 1203
    assert scene.inner.done == [OPERATORS]
    assert scene.fired == []


def test_allocations_fail_before_within_and_after_a_step(scene: Scene) -> None:
    scene.order(FailAllocation(nth=2, count=400, seed=3))
    scene.forward()
    for _ in range(400):
        with pytest.raises(DeviceOutOfMemoryError):
            scene.forward()
    done = scene.inner.done[1:]
    before = 400 - len(done)
    assert 20 < before < 80  # an eighth of them
    assert 20 < done.count(OPERATORS) < 80  # behind the last operator, another eighth
    assert set(done) == set(range(OPERATORS + 1))  # and everywhere in between
    assert len(scene.fired) == 400
    scene.forward()  # it is over


def test_an_allocation_that_fails_says_what_the_step_takes(scene: Scene) -> None:
    wanted = set()
    scene.order(FailAllocation(count=50))
    for _ in range(50):
        with pytest.raises(DeviceOutOfMemoryError) as caught:
            scene.forward()
        wanted.add((caught.value.wanted_bytes, caught.value.total_bytes))
    # The second is what the runner made of the allocator's error, which is its own business.
    assert wanted == {(3103, 10_000), (1, None)}


def test_a_strike_is_told_before_it_is_carried_out(scene: Scene) -> None:
    class TellingFailed(Exception):
        pass

    def fail(_: int) -> None:
        raise TellingFailed

    scene.runner._fired = fail
    scene.order(FailAllocation(count=50), LoseDevice())
    for _ in range(51):
        with pytest.raises(TellingFailed):
            scene.forward()
    scene.forward()  # nothing was done


def test_a_step_that_finds_no_memory_by_itself_is_struck_all_the_same(scene: Scene) -> None:
    """Or the strike would be over for the engine, and never for the front."""
    scene.inner.is_short = True
    scene.order(FailAllocation(count=50), LoseDevice())
    for _ in range(50):
        with pytest.raises(DeviceOutOfMemoryError):
            scene.forward()
    with pytest.raises(DeviceLostError):
        scene.forward()
    assert [fault_id for fault_id, _ in scene.fired] == [0] * 50 + [1]


def test_a_lost_device_does_not_come_back(scene: Scene) -> None:
    scene.order(LoseDevice(nth_step=2))
    scene.forward()
    with pytest.raises(DeviceLostError, match="on purpose"):
        scene.forward()
    started = scene.inner.started
    scene.order()
    for _ in range(3):
        with pytest.raises(DeviceLostError):
            scene.forward()
    assert scene.inner.started == started
    assert len(scene.fired) == 1


def test_a_slow_device_beats_so_that_nobody_takes_it_for_frozen(scene: Scene) -> None:
    scene.order(SlowDevice(extra_seconds=0.25, hold_seconds=10))
    scene.forward()
    assert len(scene.beats) == 3
    scene.now[0] = 10.0
    scene.forward()
    assert len(scene.beats) == 3


# --- memory ---


def device_of(size_bytes: int) -> CpuDevice:
    return CpuDevice(size_bytes, available_bytes=lambda: 1 << 40)


class GrowingArena:
    """An `ElasticMemory` of 10 blocks that grows to 20."""

    layout = KVLayout(1, 1, 1, 16, KVDtype.FLOAT32)

    def __init__(self) -> None:
        self.num_blocks, self.max_blocks = 10, 20

    def require_memory(self, num_blocks: int) -> None:
        pass

    def grow(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def shrink(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks


@dataclasses.dataclass
class Faulty:
    """Seams with faults over a device of 10,000 bytes."""

    seams: Seams
    device: CpuDevice
    arena: GrowingArena
    told: list[int]
    now: list[float]

    def order(self, *faults: Fault) -> None:
        ordered = [OrderedFault(i, 0.0, fault) for i, fault in enumerate(faults)]
        self.seams.inject(Inject(ordered))


@pytest.fixture
def faulty() -> Faulty:
    device, arena, now = device_of(10_000), GrowingArena(), [0.0]
    told: list[int] = []

    def tell(message: FaultFired) -> None:
        told.append(message.fault_id)

    seams = with_faults(
        plain_seams(StepRunner(CountedOperators()), device, arena),
        tell=tell,
        beat=lambda: None,
        load_seconds=0.01,
        clock=lambda: now[0],
    )
    return Faulty(seams, device, arena, told, now)


def test_a_balloon_takes_memory_as_time_goes_by(faulty: Faulty) -> None:
    faulty.order(Balloon(share=0.6, rise_seconds=10, hold_seconds=10, fall_seconds=10))
    others = {}
    for now_seconds in (0.0, 5.0, 10.0, 20.0, 25.0, 30.0, 31.0):
        faulty.now[0] = now_seconds
        others[now_seconds] = faulty.seams.device.figures().by_owner[Owner.OTHERS]
    assert others == {0.0: 0, 5.0: 3000, 10.0: 6000, 20.0: 6000, 25.0: 3000, 30.0: 0, 31.0: 0}


def test_a_balloon_takes_what_is_free_and_the_rest_later(faulty: Faulty) -> None:
    faulty.device.take(Owner.KV_POOL, 8_000)
    faulty.order(Balloon(share=0.6, hold_seconds=10))
    assert faulty.seams.device.figures().free_bytes == 0
    faulty.device.give_back(Owner.KV_POOL, 3_000)
    figures = faulty.seams.device.figures()
    assert (figures.by_owner[Owner.OTHERS], figures.free_bytes) == (5_000, 0)
    faulty.device.give_back(Owner.KV_POOL, 3_000)
    figures = faulty.seams.device.figures()
    assert (figures.by_owner[Owner.OTHERS], figures.free_bytes) == (6_000, 2_000)


def test_an_order_without_faults_bursts_the_balloon(faulty: Faulty) -> None:
    faulty.order(Balloon(share=0.6, hold_seconds=1000))
    assert faulty.seams.device.figures().free_bytes == 4_000
    faulty.order()
    assert faulty.seams.device.figures().free_bytes == 10_000


def test_a_balloon_takes_its_due_at_each_look_and_leaves_the_rest_to_steps(faulty: Faulty) -> None:
    faulty.order(Balloon(share=0.9, hold_seconds=10))
    device = faulty.seams.device
    device.take(Owner.KV_POOL, 2_000)
    assert device.figures().by_owner[Owner.OTHERS] == 8_000
    with pytest.raises(DeviceOutOfMemoryError):
        faulty.device.take(Owner.ACTIVATIONS, 1)  # as the runner does, past the wrapper
    device.give_back(Owner.KV_POOL, 2_000)
    faulty.device.take(Owner.ACTIVATIONS, 500)
    assert device.figures().by_owner[Owner.OTHERS] == 9_000
    device.give_back(Owner.ACTIVATIONS, 500)
    assert device.release_cached() == 500


def test_a_pool_that_cannot_grow(faulty: Faulty) -> None:
    arena = faulty.seams.arena
    faulty.order(FailAllocation(owner="kv_pool", nth=2))
    arena.grow(12)
    with pytest.raises(MemoryShortError) as caught:
        arena.grow(14)
    assert caught.value.wanted_bytes == 2 * arena.layout.block_bytes
    assert (arena.num_blocks, arena.max_blocks) == (12, 20)
    assert faulty.told == [0]
    arena.grow(14)
    arena.shrink(11)
    assert faulty.arena.num_blocks == arena.num_blocks == 11


# --- tiers ---


class InstantTier:
    """Answers at once; all that tests need of a `Tier`."""

    name = "instant"

    def __init__(self) -> None:
        self.reads = 0

    def read(self, keys: list[BlockKey], _into: list[memoryview]) -> int:
        self.reads += 1
        return len(keys)

    def leading_hits(self, keys: list[BlockKey]) -> int:
        return len(keys)


def test_a_lost_read_outlasts_the_patience_of_those_who_wait(
    faulty: Faulty, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("service.engine.faulty.tier.time.sleep", slept.append)
    inner = InstantTier()
    tier: Tier = faulty.seams.wrap_tier(inner)  # type: ignore[arg-type]
    faulty.order(LoseTransfer(count=2))
    for _ in range(3):
        tier.read([], [])
    assert slept == [0.02, 0.02]  # twice what a sequence waits for a load
    assert inner.reads == 3
    assert tier.name == "instant"


def test_losses_are_told_by_the_engine_and_not_by_the_threads_that_read(faulty: Faulty) -> None:
    tier = faulty.seams.wrap_tier(InstantTier())  # type: ignore[arg-type]
    faulty.order(LoseTransfer(count=8))
    threads = [threading.Thread(target=lambda: tier.read([], [])) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faulty.told == []
    faulty.seams.device.figures()  # the engine looks at its memory
    assert faulty.told == [0] * 8


# --- the whole ---


def test_an_engine_that_allows_no_faults_takes_no_order() -> None:
    seams = plain_seams(StepRunner(CountedOperators()), device_of(1), GrowingArena())
    with pytest.raises(ValueError, match="allow_faults"):
        seams.inject(Inject([]))
    tier = InstantTier()
    assert seams.wrap_tier(tier) is tier  # type: ignore[comparison-overlap,arg-type]


def test_a_device_that_cannot_be_crowded_takes_no_faults() -> None:
    seams = plain_seams(StepRunner(CountedOperators()), object(), GrowingArena())  # type: ignore[arg-type]
    with pytest.raises(StartError, match="allow_faults"):
        with_faults(seams, tell=lambda _: None, beat=lambda: None, load_seconds=1.0)
