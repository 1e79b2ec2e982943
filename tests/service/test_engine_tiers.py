"""The engine with tiers below its pool: loads, swaps, and what goes wrong with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from engine_fakes import EngineHarness, spec_of
from kv_tier_fakes import FakeTier, until

from kvcache import CacheManager, KVDtype, KVLayout
from kvcache.memory import BlockMemory
from kvcache.tiers import Fingerprint, chain_keys
from kvcache.tiers.host import HostTier
from kvcache.tiers.loads import LoadLimits
from kvcache.tiers.offload import Offload
from service.engine.figures import EngineStats, TierFigures
from service.engine.messages import FinishReason, Preempted, Readmitted, SequenceSpec

LAYOUT = KVLayout(1, 1, 1, 16, KVDtype.FLOAT32)  # that of the fake runner
FINGERPRINT = Fingerprint("fake", "none", LAYOUT).digest
LEASE_SECONDS = 5.0  # as many steps of the harness


def prompt(seed: int, tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 256, tokens).tolist()


class TieredEngine(EngineHarness):
    """A harness with a host tier, and a disk where the test has one."""

    def __init__(
        self,
        host_blocks: int,
        disk: FakeTier | None = None,
        lease_seconds: float = LEASE_SECONDS,
        **settings: Any,
    ) -> None:
        self.host = HostTier(LAYOUT.block_bytes, host_blocks * LAYOUT.block_bytes)
        self.disk = disk

        def make(manager: CacheManager, memory: BlockMemory, clock: Callable[[], float]) -> Offload:
            self.offload = Offload(
                manager,
                memory,
                FINGERPRINT,
                self.host,
                disk=disk,
                limits=LoadLimits(min_blocks=1, lease_seconds=lease_seconds),
                clock=clock,
            )
            return self.offload

        super().__init__(offload=make, **settings)

    def close(self) -> None:
        if self.disk is not None:
            self.disk.open_all()
        self.offload.close()

    @property
    def stats(self) -> EngineStats:
        return self.core.stats()

    @property
    def tiers(self) -> TierFigures:
        figures = self.stats.tiers
        assert figures is not None
        return figures

    def take_time(self, *, seconds_per_token: float, seconds_per_copy: float) -> None:
        """Lets time pass in steps and in copies to the host, so that their speeds are measured."""
        self.let_steps_last(seconds_per_token)
        put = self.host.put

        def slow_put(*arguments: Any) -> bool:
            self.now_seconds += seconds_per_copy
            return put(*arguments)

        self.host.put = slow_put  # type: ignore[method-assign]

    def wait_for_loads(self) -> None:
        """Lets the threads of the tiers catch up, while the clock of the engine stands still."""

        def are_over() -> bool:
            self.offload.poll()
            return self.tiers.loads == 0

        until(are_over)

    def serve(self, *specs: SequenceSpec) -> None:
        """Runs these to their end; each must say what it says alone."""
        self.core.submit(specs)
        self.run()
        self.assert_said(*specs)

    def lose_a_prompt(self) -> SequenceSpec:
        """Serves a prompt of ten blocks, and so many others that its blocks leave a pool of 16.

        The last of its blocks leave first; nine of them are of use to the same prompt.
        """
        first = spec_of(1, prompt(1, 160), max_tokens=2)
        self.serve(first)
        self.serve(*(spec_of(i, prompt(i, 200), max_tokens=2) for i in range(2, 5)))
        if (disk := self.disk) is not None:
            keys = chain_keys(FINGERPRINT, b"", np.array(first.prompt_ids, np.int32), 16)[:9]
            until(lambda: disk.leading_hits(keys) == 9)
        return first

    def assert_said(self, *specs: SequenceSpec) -> None:
        for spec in specs:
            assert self.output(spec.sequence_id) == self.oracle(spec)

    def assert_nothing_is_kept(self) -> None:
        stats = self.stats
        assert (stats.blocks_held, stats.blocks_kept) == (0, 0)
        assert self.host.pinned_blocks == 0
        assert self.host.room_blocks == self.host.num_slots


@pytest.fixture
def engines() -> Iterator[Callable[..., TieredEngine]]:
    made: list[TieredEngine] = []

    def make(*arguments: Any, **settings: Any) -> TieredEngine:
        made.append(TieredEngine(*arguments, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


Engines = Callable[..., TieredEngine]


class TestLoads:
    """Blocks that left the pool come back instead of being computed."""

    def test_a_prompt_whose_blocks_left_the_pool_is_loaded(self, engines: Engines) -> None:
        engine = engines(host_blocks=64, blocks=16)
        first = engine.lose_a_prompt()
        assert engine.manager.lookup(b"", np.array(first.prompt_ids, np.int32)) == 0
        computed_before = engine.runner.computed_tokens
        engine.serve(spec_of(9, first.prompt_ids, max_tokens=2))
        assert engine.started(9).cached_tokens == 144
        assert engine.runner.computed_tokens - computed_before == 16 + 1
        assert engine.tiers.loaded_blocks == 9
        engine.assert_nothing_is_kept()

    def test_a_load_is_waited_for_while_others_run(self, engines: Engines) -> None:
        disk = FakeTier()
        engine = engines(host_blocks=1, disk=disk, blocks=16)
        first = engine.lose_a_prompt()
        disk.gate("read").clear()
        engine.core.submit([spec_of(8, first.prompt_ids, max_tokens=2)])
        engine.core.submit([spec_of(9, prompt(9, 20), max_tokens=2)])
        report = engine.step()
        assert [started.sequence_id for started in report.started] == [9]
        assert not engine.core.stalled_steps
        assert engine.tiers.loads == 1
        disk.open_all()
        engine.wait_for_loads()
        engine.run()
        assert engine.started(8).cached_tokens == 144
        engine.assert_nothing_is_kept()

    def test_a_load_that_never_ends_costs_its_deadline_and_nothing_else(
        self, engines: Engines
    ) -> None:
        disk = FakeTier()
        engine = engines(host_blocks=1, disk=disk, blocks=16)
        first = engine.lose_a_prompt()
        disk.gate("read").clear()
        again = spec_of(9, first.prompt_ids, max_tokens=2)
        engine.core.submit([again])
        engine.step()
        assert engine.core.stalled_steps
        assert engine.stats.blocks_kept > 0
        steps_before = len(engine.reports)
        engine.run()
        assert len(engine.reports) - steps_before <= LEASE_SECONDS + 3
        engine.assert_said(again)
        assert engine.tiers.expired_loads == 1
        engine.assert_nothing_is_kept()

    def test_a_load_that_holds_blocks_the_next_in_line_needs_is_no_deadlock(
        self, engines: Engines
    ) -> None:
        disk = FakeTier()
        engine = engines(host_blocks=1, disk=disk, blocks=16)
        first = engine.lose_a_prompt()
        disk.gate("read").clear()
        again = spec_of(8, first.prompt_ids, max_tokens=2)
        engine.core.submit([again])
        engine.step()
        assert engine.stats.blocks_kept == 9
        large = spec_of(9, prompt(9, 230), max_tokens=2, priority=1)
        engine.core.submit([large])
        engine.run(max_steps=20)
        engine.assert_said(again, large)
        engine.assert_nothing_is_kept()

    def test_a_running_one_that_needs_the_blocks_of_a_load_gets_them(
        self, engines: Engines
    ) -> None:
        disk = FakeTier()
        engine = engines(host_blocks=1, disk=disk, lease_seconds=60.0, blocks=16, load_line=1.0)
        first = engine.lose_a_prompt()
        alone = spec_of(8, prompt(8, 94), max_tokens=40)
        engine.core.submit([alone])
        engine.step()
        disk.gate("read").clear()
        again = spec_of(9, first.prompt_ids, max_tokens=2)
        engine.core.submit([again])
        engine.step()
        assert (engine.stats.blocks_held, engine.stats.blocks_kept) == (6, 9)
        engine.run_until(lambda: engine.stats.blocks_kept == 0, max_steps=30)
        assert engine.stats.blocks_held == 8
        disk.open_all()
        engine.run()
        assert engine.finished(8).reason is FinishReason.MAX_TOKENS
        engine.assert_said(alone, again)
        engine.assert_nothing_is_kept()

    def test_an_abort_while_blocks_are_loaded_leaves_nothing_behind(self, engines: Engines) -> None:
        disk = FakeTier()
        engine = engines(host_blocks=1, disk=disk, blocks=16)
        first = engine.lose_a_prompt()
        disk.gate("read").clear()
        engine.core.submit([spec_of(9, first.prompt_ids, max_tokens=2)])
        engine.step()
        engine.core.abort([9])
        engine.assert_nothing_is_kept()
        assert engine.tiers.loads == 0
        disk.open_all()
        engine.serve(spec_of(10, first.prompt_ids, max_tokens=2))

    def test_after_a_flush_no_tier_has_anything(self, engines: Engines) -> None:
        engine = engines(host_blocks=64, blocks=16)
        first = engine.lose_a_prompt()
        engine.core.flush(None)
        engine.serve(spec_of(9, first.prompt_ids, max_tokens=2))
        assert engine.started(9).cached_tokens == 0
        assert engine.tiers.loaded_blocks == 0

    def test_one_who_opted_out_of_the_cache_is_not_loaded_for(self, engines: Engines) -> None:
        engine = engines(host_blocks=64, blocks=16)
        first = engine.lose_a_prompt()
        engine.serve(spec_of(9, first.prompt_ids, max_tokens=2, use_prefix_cache=False))
        assert engine.tiers.loaded_blocks == 0


class TestSwap:
    """A victim whose blocks are copied to the host and back."""

    def pressed(self, engine: TieredEngine) -> list[SequenceSpec]:
        """Two low ones fill the pool, then a high one takes nearly all of it."""
        engine.take_time(seconds_per_token=0.01, seconds_per_copy=0.001)
        engine.serve(*(spec_of(i, prompt(i, 250), max_tokens=2) for i in range(100, 104)))
        low = [spec_of(i, prompt(i, 110), max_tokens=12) for i in (1, 2)]
        engine.core.submit(low)
        for _ in range(4):
            engine.step()
        high = spec_of(3, prompt(3, 250), max_tokens=3, priority=1)
        engine.core.submit([high])
        engine.run()
        engine.assert_said(*low, high)
        return low

    def test_victims_of_a_large_one_are_swapped_and_come_back(self, engines: Engines) -> None:
        engine = engines(host_blocks=64, blocks=17, load_line=1.0)
        low = self.pressed(engine)
        stats = engine.stats
        assert stats.swaps == 2
        # Only the last blocks, which were not full, are computed again.
        recomputed = sum(engine.finished(s.sequence_id).recomputed_tokens for s in low)
        assert recomputed < 2 * LAYOUT.block_tokens
        moves = [move for report in engine.reports for move in report.moves]
        lost = [move.lost_tokens for move in moves if isinstance(move, Preempted)]
        back = [move.cached_tokens for move in moves if isinstance(move, Readmitted)]
        assert sum(lost) == recomputed + sum(back)
        size = LAYOUT.block_tokens
        assert engine.tiers.swapped_out_blocks == sum(tokens // size for tokens in lost)
        assert engine.tiers.swapped_in_blocks == sum(tokens // size for tokens in back) > 0
        engine.assert_moves_are_told()
        engine.assert_nothing_is_kept()

    def test_a_full_host_leads_to_recompute_and_never_to_an_abort(self, engines: Engines) -> None:
        engine = engines(host_blocks=5, blocks=17, load_line=1.0)
        low = self.pressed(engine)
        assert engine.stats.swaps == 0
        assert engine.stats.preemptions == 2
        for spec in low:
            assert engine.finished(spec.sequence_id).reason is FinishReason.MAX_TOKENS
        engine.assert_nothing_is_kept()

    def test_an_abort_of_a_swapped_one_gives_the_host_its_room_back(self, engines: Engines) -> None:
        engine = engines(host_blocks=64, blocks=17, load_line=1.0)
        engine.take_time(seconds_per_token=0.01, seconds_per_copy=0.001)
        engine.serve(*(spec_of(i, prompt(i, 250), max_tokens=2) for i in range(100, 104)))
        engine.core.submit([spec_of(i, prompt(i, 110), max_tokens=12) for i in (1, 2)])
        for _ in range(4):
            engine.step()
        engine.core.submit([spec_of(3, prompt(3, 250), max_tokens=3, priority=1)])
        engine.step()
        assert engine.stats.swaps == 2
        assert engine.host.room_blocks < engine.host.num_slots
        engine.core.abort([1, 2, 3])
        engine.assert_nothing_is_kept()


@pytest.mark.parametrize("host_blocks", [1, 6, 64])
@pytest.mark.parametrize("publishes", [True, False])
def test_outputs_under_pressure_are_those_without(
    engines: Engines, host_blocks: int, publishes: bool
) -> None:
    engine = engines(host_blocks=host_blocks, blocks=24, load_line=1.0)
    engine.take_time(seconds_per_token=0.01, seconds_per_copy=0.001)
    stem = prompt(0, 64)
    specs = [
        spec_of(
            i,
            [*stem[: 16 * (i % 5)], *prompt(i, 20 + 13 * i % 60)],
            max_tokens=20 + 17 * i % 60,
            priority=i % 3,
            publish_blocks=publishes,
        )
        for i in range(1, 16)
    ]
    for start in range(0, 15, 5):
        engine.core.submit(specs[start : start + 5])
        for _ in range(10):
            engine.step()
    engine.run()
    engine.assert_said(*specs)
    assert engine.stats.preemptions > 0
    assert bool(engine.stats.trims) == publishes
    assert bool(engine.stats.swaps) == (publishes and host_blocks > 1)
    engine.assert_every_preemption_is_paid_with_a_token()
    engine.assert_moves_are_told()
    engine.assert_nothing_is_kept()
