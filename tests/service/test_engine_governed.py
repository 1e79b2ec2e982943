"""An engine on a small device with a neighbour: the pool gives way and comes back, no one is lost.

A step of 8 tokens takes about 9 kB here, a block 32 bytes; steps last a second.
"""

from __future__ import annotations

from typing import Any

import pytest
from engine_fakes import roomy_device, spec_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from resize_harness import PREEMPT, WAIT, ResizeHarness, prompt

from kvcache.pressure import PressureLevel
from service.device.errors import DeviceOutOfMemoryError
from service.device.owner import Owner
from service.engine.figures import WATERMARK_SECONDS, Vitals
from service.engine.messages import FinishReason

TOTAL_BYTES = 36_000


class GovernedHarness(ResizeHarness):
    """400 blocks on a device with room for 2.5 steps beside them; `neighbour` takes of that."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            **{
                "blocks": 400,
                "max_step_tokens": 8,
                "max_running_sequences": 6,
                "device": roomy_device(TOTAL_BYTES),
                **options,
            }
        )
        self.rest(1)  # a first look, at a device that nobody else uses

    def neighbour(self, size_bytes: int) -> None:
        self.device.set_foreign(size_bytes)

    @property
    def vitals(self) -> Vitals:
        vitals = self.core.stats().vitals
        assert vitals is not None
        return vitals

    @property
    def pool_blocks(self) -> int:
        return self.manager.usable_blocks

    def rest(self, seconds: int) -> None:
        """Time passes with nothing to do, as in the loop of an idle engine."""
        for _ in range(seconds):
            self.now_seconds += 1.0
            self.core.rest()
            while self.core.is_resizing:
                self.step()

    def assert_nobody_lost(self) -> None:
        assert not [refused for report in self.reports for refused in report.refused]
        assert not [exhausted for report in self.reports for exhausted in report.exhausted]
        self.assert_undisturbed()


def load(count: int, tokens: int = 40, max_tokens: int = 30) -> list[Any]:
    return [spec_of(i, prompt(i, tokens + i), max_tokens=max_tokens + i) for i in range(count)]


def test_the_pool_gives_way_to_a_neighbour_and_comes_back_and_nobody_notices() -> None:
    harness = GovernedHarness()
    harness.submit(*load(12))
    for _ in range(30):
        harness.step()
    assert (harness.vitals.level, harness.pool_blocks) == (PressureLevel.NORMAL, 400)
    harness.neighbour(int(0.6 * TOTAL_BYTES))
    for _ in range(10):
        harness.step()
    assert harness.pool_blocks < 100
    assert harness.vitals.level >= PressureLevel.ELEVATED
    assert harness.vitals.pool_ceiling_blocks == 400
    assert harness.vitals.headroom_bytes > 1.25 * harness.vitals.demand_bytes
    assert harness.preemptions, "those who ran held more than that"
    harness.run()
    harness.neighbour(0)
    harness.rest(60)
    assert (harness.vitals.level, harness.pool_blocks) == (PressureLevel.NORMAL, 400)
    harness.assert_nobody_lost()
    _, _, shrinks, grows = harness.vitals.actions
    assert 0 < shrinks <= 4
    assert 0 < grows <= 40
    assert harness.incidents == []


def test_a_dip_between_two_scrapes_is_told_for_a_minute() -> None:
    harness = GovernedHarness()
    before = harness.vitals
    assert before.headroom_low_bytes == before.headroom_bytes
    assert before.demand_high_bytes == before.demand_bytes > 0
    harness.neighbour(before.headroom_bytes // 2)
    harness.rest(1)
    dip = harness.vitals
    harness.neighbour(0)
    while harness.vitals.taken_seconds < dip.taken_seconds + WATERMARK_SECONDS - 3:
        harness.rest(1)
    after = harness.vitals
    assert after.headroom_low_bytes <= dip.headroom_bytes < after.headroom_bytes
    assert after.headroom_bytes == before.headroom_bytes
    assert after.demand_high_bytes == before.demand_bytes
    while harness.vitals.taken_seconds < after.taken_seconds + WATERMARK_SECONDS:
        harness.rest(1)
    assert harness.vitals.headroom_low_bytes == before.headroom_bytes


def test_the_figures_of_the_allocator_are_those_of_the_device() -> None:
    harness = GovernedHarness()
    with pytest.raises(DeviceOutOfMemoryError):
        harness.device.take(Owner.ACTIVATIONS, TOTAL_BYTES)
    harness.device.take(Owner.ACTIVATIONS, 500)
    harness.device.give_back(Owner.ACTIVATIONS, 200)
    harness.rest(1)
    vitals = harness.vitals
    assert (vitals.allocator_allocated_bytes, vitals.allocator_reserved_bytes) == (300, 500)
    assert vitals.reclaimable_bytes == 200
    assert (vitals.allocator_retries, vitals.allocator_ooms) == (1, 1)


def test_a_request_larger_than_the_pool_of_the_moment_gets_its_room_where_there_is_memory() -> None:
    harness = GovernedHarness()
    harness.neighbour(15_000)
    harness.rest(40)
    assert 200 < harness.pool_blocks < 300
    harness.submit(spec_of(1, prompt(1, 310 * 4), max_tokens=5))
    harness.run()
    harness.assert_nobody_lost()


def test_it_waits_for_those_who_run_and_then_for_no_one_else() -> None:
    harness = GovernedHarness(max_admission_skips=2)
    harness.neighbour(19_000)
    harness.rest(10)
    assert harness.pool_blocks < 150
    small = [spec_of(10 + i, prompt(i, 20), max_tokens=20) for i in range(12)]
    harness.submit(*small[:4], spec_of(1, prompt(1, 180 * 4), max_tokens=5), *small[4:])
    harness.run()
    harness.assert_nobody_lost()
    assert harness.output_steps(1)[0] < harness.output_steps(21)[0], "it was passed by some only"


def test_a_request_that_outgrows_the_pool_of_the_moment_goes_on_where_there_is_memory() -> None:
    harness = GovernedHarness()
    harness.neighbour(19_000)
    harness.rest(10)
    before = harness.pool_blocks
    harness.submit(spec_of(1, prompt(1, before * 4 - 10), max_tokens=200))
    harness.run()
    assert harness.finished(1).reason is FinishReason.MAX_TOKENS
    harness.assert_nobody_lost()


class TestMemoryThatIsNotThere:
    """The device keeps too little for what waits."""

    def test_the_answer_comes_after_the_setting_and_names_the_pool(self) -> None:
        harness = GovernedHarness(pool_wait_seconds=20.0)
        for _ in range(10):
            harness.neighbour(24_000)  # takes what is free; and more as the pool gives way
            harness.rest(1)
        harness.submit(spec_of(1, prompt(1, 1580), max_tokens=5), spec_of(2, prompt(2, 8)))
        began_seconds = harness.now_seconds
        harness.run_until(lambda: any(report.refused for report in harness.reports))
        (refused,) = harness.reports[-1].refused
        assert refused.sequence_id == 1
        assert refused.needed_blocks == 395
        assert refused.total_blocks == harness.pool_blocks < 395
        assert 20.0 <= harness.now_seconds - began_seconds < 60.0, "the small one ran first"
        harness.run()
        del harness.specs[1]
        harness.assert_undisturbed()

    def test_it_is_served_when_the_neighbour_goes_in_time(self) -> None:
        harness = GovernedHarness(pool_wait_seconds=20.0)
        for _ in range(10):
            harness.neighbour(24_000)
            harness.rest(1)
        harness.submit(spec_of(1, prompt(1, 1580), max_tokens=5))
        for _ in range(10):
            harness.step()
        harness.neighbour(0)
        harness.run()
        harness.assert_nobody_lost()


class TestOrders:
    """An order of the admin is the ceiling; the governor holds the pool below it."""

    def test_growth_is_answered_with_what_is_in_force_and_comes_when_there_is_memory(self) -> None:
        harness = GovernedHarness(max_blocks=450)
        harness.neighbour(15_000)
        harness.rest(40)
        held = harness.pool_blocks
        grow = harness.resize(420)
        harness.step()
        assert harness.end_of(grow).num_blocks == held
        assert harness.end_of(grow).shortage is None
        assert harness.vitals.pool_ceiling_blocks == 420
        harness.neighbour(0)
        harness.rest(60)
        assert harness.pool_blocks == 420

    def test_the_pool_does_not_grow_beyond_a_smaller_order(self) -> None:
        harness = GovernedHarness()
        harness.neighbour(15_000)
        harness.rest(10)
        shrink = harness.resize(100)
        harness.run()
        assert harness.end_of(shrink).num_blocks == 100
        harness.neighbour(0)
        harness.rest(60)
        assert harness.pool_blocks == 100
        assert harness.vitals.level is PressureLevel.NORMAL

    def test_an_order_that_asks_for_no_more_than_the_last_is_not_refused_for_memory(self) -> None:
        harness = GovernedHarness(blocks=1600, device=roomy_device(2 * TOTAL_BYTES))
        for _ in range(10):  # it takes whatever the pool gives back
            harness.neighbour(TOTAL_BYTES)
            harness.rest(1)
        held = harness.pool_blocks
        missing_bytes = (1500 - held) * harness.runner.arena.layout.block_bytes
        assert missing_bytes > harness.device.figures().headroom_bytes
        for ordered in (1600, 1500):
            order = harness.resize(ordered)
            harness.step()
            assert harness.end_of(order).shortage is None
            assert harness.end_of(order).num_blocks == held
            assert harness.end_of(order).ceiling_blocks == ordered
            assert harness.vitals.pool_ceiling_blocks == ordered
        harness.neighbour(0)
        harness.rest(60)
        assert harness.pool_blocks == 1500

    def test_an_order_that_waits_is_overtaken_as_far_as_memory_asks_for(self) -> None:
        harness = GovernedHarness()
        harness.submit(spec_of(1, prompt(1, 800), max_tokens=60), spec_of(2, prompt(2, 700)))
        harness.run_until(lambda: harness.core.stats().running == 2)
        shrink = harness.resize(50, WAIT)
        harness.step()
        assert harness.preemptions == []
        harness.neighbour(15_000)
        for _ in range(5):
            harness.step()
        assert 50 < harness.pool_blocks < 300
        assert harness.preemptions, "both together held more"
        harness.core.abort([1, 2])
        harness.run()
        assert harness.end_of(shrink).num_blocks == 50
        assert harness.end_of(shrink).preempted > 0

    def test_an_order_that_ends_short_leaves_the_ceiling_where_it_was(self) -> None:
        harness = GovernedHarness(max_blocks=10_000)
        harness.neighbour(15_000)
        harness.rest(10)
        grow = harness.resize(9_000)
        harness.step()
        assert harness.end_of(grow).shortage is not None
        assert harness.vitals.pool_ceiling_blocks == 400
        harness.neighbour(0)
        harness.rest(60)
        assert harness.pool_blocks == 400

    def test_a_shrink_that_was_not_in_force_at_its_deadline_does_not_go_on(self) -> None:
        harness = GovernedHarness()
        harness.submit(spec_of(1, prompt(1, 800), max_tokens=40))
        harness.run_until(lambda: harness.output(1))
        shrink = harness.resize(50, WAIT, limit_seconds=3.0)
        harness.run()
        harness.rest(20)
        assert harness.end_of(shrink).num_blocks == harness.pool_blocks == 400


def test_an_engine_that_starts_beside_a_neighbour_grows_to_what_the_one_before_had() -> None:
    device = roomy_device(TOTAL_BYTES)
    device.set_foreign(int(0.6 * TOTAL_BYTES))
    harness = GovernedHarness(blocks=20, max_blocks=500, ceiling_blocks=400, device=device)
    harness.rest(5)
    assert harness.pool_blocks < 200
    assert harness.vitals.pool_ceiling_blocks == 400
    harness.submit(*load(3), spec_of(9, prompt(9, 1000), max_tokens=30))
    for _ in range(20):
        harness.step()
    assert not any(finished.sequence_id == 9 for r in harness.reports for finished in r.finished)
    harness.neighbour(0)
    for _ in range(200):
        harness.step()
    harness.rest(30)
    assert harness.pool_blocks == 400
    assert harness.finished(9).reason is FinishReason.MAX_TOKENS
    harness.assert_nobody_lost()


def test_idle_engines_shrink_and_grow_too() -> None:
    harness = GovernedHarness()
    harness.neighbour(20_000)
    harness.rest(5)
    assert harness.pool_blocks < 150
    harness.neighbour(0)
    harness.rest(60)
    assert harness.pool_blocks == 400
    assert not harness.core.is_resizing


@st.composite
def scripts(draw: st.DrawFn) -> list[tuple[str, Any]]:
    """What happens before each step."""
    action = st.one_of(
        st.tuples(st.just("step"), st.integers(1, 8)),
        st.tuples(
            st.just("submit"), st.tuples(st.integers(0, 2), st.integers(1, 600), st.integers(1, 60))
        ),
        st.tuples(st.just("neighbour"), st.integers(0, TOTAL_BYTES)),
        st.tuples(
            st.just("resize"), st.tuples(st.integers(300, 400), st.sampled_from([WAIT, PREEMPT]))
        ),
    )
    return draw(st.lists(action, min_size=4, max_size=30))


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scripts())
def test_whatever_a_neighbour_does_every_request_says_all_it_has_to_say(
    script: list[tuple[str, Any]],
) -> None:
    harness = GovernedHarness()
    for action, argument in script:
        if action == "step":
            for _ in range(argument):
                harness.step()
        elif action == "submit":
            stem, tokens, max_tokens = argument
            number = len(harness.specs)
            own = [*prompt(stem, 600)[:tokens], number % 256]
            harness.submit(spec_of(number, own, max_tokens=max_tokens))
        elif action == "neighbour":
            harness.neighbour(argument)
        else:
            harness.resize(*argument)
    harness.neighbour(0)
    harness.resize(400)
    harness.run()
    harness.rest(130)
    assert harness.pool_blocks == 400
    harness.assert_nobody_lost()
