"""Any order of operations on a cache manager, compared with a naive model after every step.

The operations are in `kv_machine`, the model and what it compares in `kv_world`. A step is one
call of a scheduler, an operator or a tier. The slow part takes 200,000 of them, and counts them.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from kv_machine import EverythingMachine
from kv_scenes import CORES

from kvcache.core import CoreChoice

PARTS = 4
STEPS = 200_000


def take_steps(core: CoreChoice, steps: int, machines: int) -> int:
    """Runs so many machines of at most 100 steps each, and again, until `steps` are taken.

    Answers how many were.
    """
    machine = type("Machine", (EverythingMachine,), {"core": core, "steps": 0})
    budget = settings(
        max_examples=machines,
        stateful_step_count=100,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    while machine.steps < steps:
        run_state_machine_as_test(machine, settings=budget)
    return machine.steps


@pytest.mark.timeout(900)  # what fails is made small first
@pytest.mark.parametrize("core", CORES)
def test_a_few_hundred_steps_in_any_order(core: CoreChoice) -> None:
    assert take_steps(core, steps=400, machines=5) >= 400


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("core", CORES)
def test_200_000_steps_in_any_order(core: CoreChoice, part: int) -> None:
    del part  # Hypothesis draws other steps in every part
    share = STEPS // (PARTS * len(CORES))
    assert take_steps(core, steps=share, machines=25) >= share
