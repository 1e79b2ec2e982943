"""What a forecast is made of: costs of steps, habits, calibration, and the forecast itself."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.front.calibration import Calibration
from service.front.forecast import Demand, Load, Turnover, forecast
from service.front.habits import AgeingMean, Habits
from service.front.step_costs import Costs, StepCosts

TRUE = Costs(base_seconds=0.05, sequence_seconds=0.005, prefill_seconds=0.003)


def learned(steps: int, rng: random.Random, costs: Costs = TRUE, noise: float = 0.1) -> StepCosts:
    learning = StepCosts()
    feed(learning, steps, rng, costs, noise)
    return learning


def feed(
    learning: StepCosts, steps: int, rng: random.Random, costs: Costs = TRUE, noise: float = 0.1
) -> None:
    for _ in range(steps):
        sequences, tokens = rng.randrange(1, 33), rng.choice((0, 0, 20, 200))
        seconds = costs.step_seconds(sequences, tokens) * rng.uniform(1 - noise, 1 + noise)
        learning.note(sequences, tokens, seconds)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("scale", [0.01, 1.0, 10.0])
def test_costs_are_told_apart_by_steps_of_different_batches(seed: int, scale: float) -> None:
    costs = Costs(*(scale * c for c in (0.05, 0.005, 0.003)))
    found = learned(300, random.Random(seed), costs).costs
    assert found is not None
    for batch in ((1, 0), (32, 0), (16, 100)):
        assert found.step_seconds(*batch) == pytest.approx(costs.step_seconds(*batch), rel=0.25)
    assert found.prefill_seconds == pytest.approx(costs.prefill_seconds, rel=0.3)


def test_nothing_is_known_before_the_first_step() -> None:
    assert StepCosts().costs is None


def test_steps_of_one_sequence_say_little_of_large_batches() -> None:
    learning = StepCosts()
    for _ in range(1000):
        learning.note(1, 0, 0.055)
    assert learning.costs is not None
    assert learning.costs.step_seconds(1) == pytest.approx(0.055, rel=0.01)
    assert learning.costs.step_seconds(64) < 2 * 0.055, "else all but one would be refused"


def test_what_is_known_of_large_batches_outlives_an_hour_of_small_ones() -> None:
    rng = random.Random(1)
    learning = learned(300, rng)
    for _ in range(60_000):
        learning.note(1, 0, TRUE.step_seconds(1) * rng.uniform(0.9, 1.1))
    assert learning.costs is not None
    assert learning.costs.step_seconds(32) == pytest.approx(TRUE.step_seconds(32), rel=0.3)


@pytest.mark.parametrize("factor", [0.25, 4.0])
def test_a_change_of_speed_is_followed(factor: float) -> None:
    rng = random.Random(2)
    learning = learned(300, rng)
    changed = Costs(*(factor * c for c in (0.05, 0.005, 0.003)))
    feed(learning, 300, rng, changed)
    assert learning.costs is not None
    assert learning.costs.step_seconds(16) == pytest.approx(changed.step_seconds(16), rel=0.25)


def test_one_step_that_was_held_up_is_no_new_speed() -> None:
    learning = learned(300, random.Random(3))
    learning.note(16, 0, 60.0)
    assert learning.costs is not None
    assert learning.costs.step_seconds(16) < 3 * TRUE.step_seconds(16)


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_batches_and_stalls_leads_far_from_the_truth(seed: int) -> None:
    rng = random.Random(seed)
    base = rng.choice((0.01, 0.3))
    true = Costs(base, base * rng.choice((0.005, 0.3)), base * rng.choice((0.005, 0.2)))
    learning = StepCosts()
    for run in range(120):
        sequences, tokens = rng.choice((1, 1, 2, 5, 12, 30)), rng.choice((0, 0, 0, 3, 20, 200))
        for _ in range(rng.choice((1, 1, 3, 100))):
            stall = rng.choice((1,) * 30 + (5, 20))
            seconds = true.step_seconds(sequences, tokens) * rng.uniform(0.7, 1.4) * stall
            learning.note(sequences, tokens, seconds)
        costs = learning.costs
        assert costs is not None
        if run > 20:
            for batch in ((1, 0), (12, 0), (30, 20)):
                assert costs.step_seconds(*batch) < 10 * true.step_seconds(*batch)


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 4096), st.integers(0, 8192), st.floats(0, 600)), max_size=60
    )
)
def test_costs_are_never_negative_nor_without_end(steps: list[tuple[int, int, float]]) -> None:
    learning = StepCosts()
    for sequences, tokens, seconds in steps:
        learning.note(sequences, tokens, seconds)
        costs = learning.costs
        assert costs is not None
        for cost in (costs.base_seconds, costs.sequence_seconds, costs.prefill_seconds):
            assert 0 <= cost < 1e6


def test_a_step_that_took_no_time_by_the_clock_is_a_step() -> None:
    learning = StepCosts()
    learning.note(4, 0, 0.0)
    assert learning.costs is not None
    assert learning.costs.step_seconds(4) > 0


def test_a_batch_that_is_taken_to_cost_nothing_is_learned() -> None:
    learning = StepCosts()
    learning.note(4, 0, 0.01)
    learning._costs = Costs(0.0, 0.0, 0.0)  # as a fit may say
    learning.note(0, 9, 0.5)
    assert learning.costs is not None
    assert learning.costs.step_seconds(0, 9) == pytest.approx(0.5, rel=0.1)


def test_a_lone_request_takes_its_prompt_and_its_output() -> None:
    demand = Demand(sequences=1, prompt_tokens=100, output_tokens=10)
    found = forecast(TRUE, Turnover(0, 0), Load(slots=8, running=0), demand, chunk_tokens=64)
    assert found.queue_seconds == 0
    assert found.prefill_seconds == pytest.approx(2 * 0.055 + 100 * 0.003)
    assert found.decode_seconds == pytest.approx(10 * 0.055)
    assert found.seconds == pytest.approx(0.11 + 0.3 + 0.55)


def test_one_that_finds_no_slot_waits_until_those_before_it_have_gone() -> None:
    """8 slots, each free after 20 steps: a sequence leaves every 2.5 steps."""
    demand = Demand(sequences=1, prompt_tokens=0, output_tokens=10)
    load = Load(slots=8, running=8, ahead=3)
    found = forecast(TRUE, Turnover(20, 0), load, demand, chunk_tokens=64)
    assert found.queue_seconds == pytest.approx(4 * 2.5 * TRUE.step_seconds(8))


def test_prompts_of_those_that_follow_lengthen_every_step() -> None:
    demand = Demand(sequences=1, prompt_tokens=0, output_tokens=10)
    found = forecast(TRUE, Turnover(10, 6.0), Load(slots=8, running=3), demand, chunk_tokens=64)
    assert found.decode_seconds == pytest.approx(10 * TRUE.step_seconds(4, 24))


@given(
    running=st.integers(0, 40),
    ahead=st.integers(0, 40),
    reserve=st.floats(0, 10),
    tokens=st.floats(0, 4000),
    output=st.floats(1, 500),
)
def test_more_work_before_it_never_makes_a_request_faster(
    running: int, ahead: int, reserve: float, tokens: float, output: float
) -> None:
    turnover = Turnover(32, 2.0)

    def seconds(load: Load, demand: Demand) -> float:
        return forecast(TRUE, turnover, load, demand, chunk_tokens=256).seconds

    demand = Demand(1, tokens, output)
    load = Load(16, running, ahead, 20.0 * ahead, reserve)
    base = seconds(load, demand) * (1 + 1e-9)
    assert base >= seconds(Load(16, running, ahead, 20.0 * ahead), demand)
    assert seconds(Load(16, running + 1, ahead, 20.0 * ahead, reserve), demand) * 1.0001 >= base
    assert seconds(load, Demand(2, tokens, output)) * 1.0001 >= base
    assert seconds(load, Demand(1, tokens, output + 1)) >= base


def test_a_mean_fades_when_nothing_new_comes() -> None:
    mean = AgeingMean()
    assert mean.at(5.0) is None
    mean.note(100.0, 5.0)
    assert mean.at(35.0) == 100.0
    assert mean.at(65.0) == pytest.approx(50.0)
    assert mean.at(1e9) == pytest.approx(0.0, abs=1e-9)
    mean.note(80.0, 65.0)
    assert mean.at(65.0) == pytest.approx(65.0), "half of 50 and half of 80"


def test_habits_of_a_tenant_count_the_more_the_longer_it_is_known() -> None:
    habits = Habits()
    assert habits.output_tokens("a", 0.0) is None
    for _ in range(200):
        habits.note_end("a", 100, 0.0, was_cut=False)
        habits.note_end("b", 20, 0.0, was_cut=False)
    assert habits.output_tokens("nobody", 0.0) == pytest.approx(60, abs=5)
    assert habits.output_tokens("a", 0.0) == pytest.approx(95, abs=3)
    habits.note_end("c", 1000, 0.0, was_cut=False)
    known = habits.output_tokens("c", 0.0)
    assert known is not None
    assert known < 200, "one long answer is no habit"


def test_answers_that_were_cut_short_do_not_look_short() -> None:
    habits = Habits()
    for _ in range(50):
        habits.note_end("a", 100, 0.0, was_cut=False)
        habits.note_end("a", 5, 0.0, was_cut=True)
    assert habits.output_tokens("a", 0.0) == pytest.approx(100)
    for _ in range(200):
        habits.note_end("a", 150, 0.0, was_cut=True)
    assert habits.output_tokens("a", 0.0) == pytest.approx(150, rel=0.05)


def test_prompts_that_the_cache_has_are_not_counted() -> None:
    habits = Habits()
    assert habits.computed_share("a", 0.0) == 0.0
    for _ in range(200):
        habits.note_start("a", 1000, 900, 0.0)
        habits.note_end("a", 10, 0.0, was_cut=False)
    assert habits.computed_share("a", 0.0) == pytest.approx(0.1)
    turnover = habits.turnover(0.0)
    assert turnover.output_tokens == pytest.approx(10)
    assert turnover.prefill_per_output == pytest.approx(10)


def test_habits_of_the_tenants_seen_last_are_kept() -> None:
    habits = Habits()
    for number in range(5000):
        habits.note_end(f"tenant {number}", 10, 0.0, was_cut=False)
    assert len(habits._tenants) == 1024
    assert "tenant 4999" in habits._tenants


@pytest.mark.parametrize("seed", range(5))
def test_nine_of_ten_are_done_in_the_time_forecast(seed: int) -> None:
    rng = random.Random(seed)
    calibration = Calibration()
    for _ in range(200):
        calibration.note(rng.uniform(0.5, 1.5))
    hits = 0
    for _ in range(500):
        ratio = rng.uniform(0.5, 1.5)
        hits += ratio <= calibration.factor
        calibration.note(ratio)
    assert 0.75 <= hits / 500 <= 0.98


def test_forecasts_that_are_long_enough_are_left_alone() -> None:
    calibration = Calibration()
    for _ in range(100):
        calibration.note(0.2)
    assert calibration.factor == 1.0


def test_a_bad_time_does_not_leave_a_factor_behind() -> None:
    calibration = Calibration()
    for _ in range(200):
        calibration.note(1000.0)
    assert calibration.factor == pytest.approx(10.0)
    for _ in range(60):
        calibration.note(0.9)
    assert calibration.factor < 1.1
