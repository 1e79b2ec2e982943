"""The governor over simulated minutes: neighbours that come and go, leaks, loads, any device."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import groupby, pairwise

import pytest
from governor_sim import MIB, Machine, Member, Moment, Simulation, ramp, steady_load
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kvcache.pressure import FOREVER_SECONDS, PressureLevel
from service.engine.figures import GovernorAction

LOOK_SECONDS = 0.1
# Minutes of simulation are not worth hours of shrinking.
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)

machines = st.builds(
    Machine.sized,
    total_bytes=st.sampled_from([256, 2048, 16384]).map(lambda mib: mib * MIB),
    demand_share=st.floats(0.005, 0.4),
    utilization=st.floats(0.75, 0.97),
    step_seconds=st.sampled_from([0.03, 0.1, 0.35]),
    keeps_activations=st.booleans(),
)


def load_of(machine: Machine) -> Callable[[float], list[Member]]:
    """About 20 sequences at a time."""
    return steady_load(0.2 / machine.step_seconds, 300, 100, machine.step_seconds)


def longest(moments: list[Moment], holds: Callable[[Moment], bool]) -> int:
    """Steps of the longest time in a row for which something holds."""
    return max((len([*run]) for held, run in groupby(moments, holds) if held), default=0)


@given(machines)
@settings(max_examples=40, deadline=None)
def test_a_device_at_rest_is_at_normal_whatever_its_size(machine: Machine) -> None:
    sim = Simulation(machine, arrivals=load_of(machine))
    sim.run(20)
    assert {moment.level for moment in sim.moments} == {PressureLevel.NORMAL}
    assert {moment.goal_blocks for moment in sim.moments} == {machine.pool_blocks}
    assert {moment.decision.prefill_tokens for moment in sim.moments} == {512}
    assert sim.actions() == sim.failures == []


@pytest.mark.slow
@given(
    machine=machines,
    share=st.floats(0.05, 0.7),
    rise_seconds=st.sampled_from([0.01, 1.0, 10.0]),
    begin=st.floats(3.0, 4.0),
)
@settings(max_examples=60, deadline=None, phases=NO_SHRINKING)
def test_a_neighbour_that_takes_memory_and_gives_it_back(
    machine: Machine, share: float, rise_seconds: float, begin: float
) -> None:
    foreign = ramp(int(share * machine.total_bytes), begin, rise_seconds, hold=10.0)
    sim = Simulation(machine, foreign=foreign, arrivals=load_of(machine))
    sim.run(begin + 2 * rise_seconds + 10)
    gone = sim.seconds
    sim.arrivals = lambda _: []
    sim.run(90)

    taken_bytes = share * machine.total_bytes
    shrinks = math.ceil(taken_bytes / (sim.shrink_blocks * machine.block_bytes))
    looks = math.ceil(LOOK_SECONDS / machine.step_seconds)
    least = 40  # blocks that the largest of the load needs, and some

    def is_short_without_need(moment: Moment) -> bool:
        return moment.headroom_bytes < moment.demand_bytes and moment.pool_blocks > least

    assert longest(sim.moments, is_short_without_need) <= shrinks + looks + 1
    room_bytes = machine.total_bytes - machine.weights_bytes - taken_bytes
    if room_bytes > machine.demand_bytes + 2 * least * machine.block_bytes:
        # It has to grow to what the next one needs before that can be admitted.
        idle = longest(sim.moments, lambda m: not m.running and m.waiting > 0)
        assert idle <= looks + 2, "work waited and nothing ran"
    assert sim.moments[-1].pool_blocks == machine.pool_blocks, "it grew back to its ceiling"
    assert sim.moments[-1].level is PressureLevel.NORMAL
    assert sim.turns(since_seconds=gone) <= 1
    assert sim.completed > 0


@pytest.mark.parametrize("step_seconds", [0.03, 0.1, 0.35])
@pytest.mark.parametrize("demand_share", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("total_mib", [512, 8192])
def test_no_step_fails_while_a_balloon_takes_60_percent_within_10_seconds(
    total_mib: int, demand_share: float, step_seconds: float
) -> None:
    machine = Machine.sized(
        total_mib * MIB, demand_share, step_seconds=step_seconds, keeps_activations=False
    )
    balloon = ramp(int(0.6 * machine.total_bytes), 3.0, 10.0, hold=5.0)
    sim = Simulation(machine, foreign=balloon, arrivals=load_of(machine))
    sim.run(80)
    assert sim.failures == []
    assert min(moment.pool_blocks for moment in sim.moments) < machine.pool_blocks / 2
    assert sim.moments[-1].pool_blocks == machine.pool_blocks
    first = next(moment for moment in sim.moments if moment.level > PressureLevel.NORMAL)
    assert first.headroom_bytes > 1.2 * machine.demand_bytes, "the level rose before memory ended"
    assert sim.level_changes() <= 6
    assert sim.turns() <= 5


@pytest.mark.parametrize("step_seconds", [0.05, 0.1, 0.3])
@pytest.mark.parametrize("output_tokens", [15, 64])
def test_streams_go_on_while_what_the_balloon_leaves_is_enough_for_them(
    step_seconds: float, output_tokens: int
) -> None:
    """A tenth of the pool is left at the top; clients who ask again at once hold a third of that.

    What they hold goes and comes as their streams end: the pool is not to follow it down.
    """
    machine = Machine(
        total_bytes=3600 * MIB,
        weights_bytes=1150 * MIB,
        demand_bytes=44 * MIB,
        fixed_bytes=9 * MIB,
        block_bytes=720 << 10,
        pool_blocks=2880,
        step_seconds=step_seconds,
    )
    balloon = ramp(int(0.6 * machine.total_bytes), 5.0, 10.0, hold=10.0)
    sim = Simulation(machine, foreign=balloon)

    def arrivals(_: float) -> list[Member]:
        live = len(sim.running) + len(sim.waiting) + len(sim.preempted)
        return [Member(tokens=150, remaining_tokens=output_tokens) for _ in range(8 - live)]

    sim.arrivals = arrivals
    sim.run(60)
    assert min(moment.pool_blocks for moment in sim.moments) < machine.pool_blocks // 5
    assert sim.preemptions == 0
    assert sim.failures == []
    critical = sum(moment.level is PressureLevel.CRITICAL for moment in sim.moments)
    assert critical * step_seconds < 2.5, "nobody is let in then"
    assert sim.moments[-1].pool_blocks == machine.pool_blocks


@pytest.mark.parametrize("demand_share", [0.01, 0.2])
def test_a_leak_is_followed_and_nothing_fails_while_the_pool_can_give(demand_share: float) -> None:
    machine = Machine.sized(2048 * MIB, demand_share, keeps_activations=False)
    sim = Simulation(
        machine,
        foreign=lambda now: int(0.4 * machine.total_bytes * now / 300),
        arrivals=load_of(machine),
    )
    sim.run(300)
    assert sim.failures == []
    assert sim.turns() == 0
    assert sim.level_changes() <= 3
    assert sim.actions().count(GovernorAction.GROW) == 0


@pytest.mark.parametrize("period_seconds", [1.0, 6.0, 30.0])
def test_a_neighbour_that_comes_and_goes_does_not_make_the_pool_flap(period_seconds: float) -> None:
    machine = Machine.sized(2048 * MIB, 0.05)
    sim = Simulation(
        machine,
        foreign=lambda now: int(0.2 * machine.total_bytes) * (now % period_seconds * 2 < now > 5),
        arrivals=load_of(machine),
    )
    sim.run(600)
    assert sim.turns() / 10 <= 4, "a minute"
    assert sim.turns(since_seconds=300) / 5 <= 2, "a minute, once it is known"
    assert sim.level_changes() / 10 <= 8, "a minute"


@pytest.mark.slow
@given(
    machine=machines,
    share=st.floats(0.0, 0.6),
    per_step=st.floats(0.05, 1.0),
    output_tokens=st.integers(20, 300),
)
@settings(max_examples=40, deadline=None, phases=NO_SHRINKING)
def test_under_a_steady_load_and_a_neighbour_that_stays_nothing_flaps(
    machine: Machine, share: float, per_step: float, output_tokens: int
) -> None:
    """Whether the pool is plenty for the load, or far too small."""
    sim = Simulation(
        machine,
        foreign=ramp(int(share * machine.total_bytes), 2.0, 1.0, hold=1e9),
        arrivals=steady_load(
            per_step / machine.step_seconds, 200, output_tokens, machine.step_seconds
        ),
    )
    sim.run(20)
    since = sim.seconds
    sim.run(120)
    least = 40
    if min(moment.goal_blocks for moment in sim.since(since)) > 2 * least:
        assert sim.turns(since) / 2 <= 4, "a minute"
    device_levels = [moment.decision.prefill_tokens for moment in sim.since(since)]
    changes = sum(a != b for a, b in pairwise(device_levels))
    assert changes / 2 <= 8, "a minute"


def test_a_machine_without_a_limit_is_quiet_at_normal_use() -> None:
    """Others take and give back hundreds of MiB; half of the memory is available."""
    machine = Machine.sized(16384 * MIB, 0.01, utilization=0.5)
    sizes = [0, 100, 300, 50, 700, 650, 20, 500]
    sim = Simulation(
        machine, foreign=lambda now: sizes[int(now) % 8] * MIB, arrivals=load_of(machine)
    )
    sim.run(120)
    assert {moment.level for moment in sim.moments} == {PressureLevel.NORMAL}
    assert sim.actions() == []


def test_a_prompt_larger_than_a_pool_under_pressure_gets_its_room() -> None:
    """The pool was halved by a neighbour who stays; there is memory for the prompt, if not more."""
    machine = Machine.sized(2048 * MIB, 0.05)
    large = Member(tokens=900 * 16, remaining_tokens=50)

    def arrivals(now: float) -> list[Member]:
        return [large] if 20.0 <= now < 20.0 + machine.step_seconds else []

    neighbour = ramp(int(0.52 * machine.total_bytes), 2.0, 5.0, hold=1e9)
    sim = Simulation(machine, foreign=neighbour, arrivals=arrivals)
    sim.run(20)
    assert sim.pool_blocks < large.blocks, "the case in question"
    sim.run(10)
    assert sim.completed == 1
    assert sim.failures == []


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 5.0),  # seconds since the last look
            st.integers(0, 10**12),  # foreign bytes
        ),
        min_size=1,
        max_size=60,
    ),
    machines,
)
@settings(max_examples=60, deadline=None)
def test_forecasts_are_times_and_goals_are_sizes_whatever_happens(
    looks: list[tuple[float, int]], machine: Machine
) -> None:
    sim = Simulation(machine, arrivals=load_of(machine))
    for elapsed, foreign in looks:
        sim.foreign = lambda _, taken=foreign: taken
        sim.seconds += elapsed
        sim.step()
    for moment in sim.moments:
        decision = moment.decision
        assert 0.0 <= decision.device_exhaustion_seconds <= FOREVER_SECONDS
        assert 0.0 <= decision.kv_exhaustion_seconds <= FOREVER_SECONDS
        assert 0 <= decision.pool_goal_blocks <= machine.pool_blocks
        assert 1 <= decision.prefill_tokens <= decision.step_tokens == 512
