"""Faults inside a real forward pass: half-written keys and values, and torch's own errors."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from runner_driver import Drive, RunnerDriver
from tiny_model import VOCAB_SIZE, write_tiny_llama

from service.config import EngineSettings
from service.device.errors import DeviceLostError, DeviceOutOfMemoryError
from service.engine.build import BuiltRunner, build_runner
from service.engine.faulty.operators import BeforeOperators
from service.engine.faulty.wiring import with_faults
from service.engine.messages import FaultFired, Inject, OrderedFault
from service.engine.runner import Runner
from service.engine.seams import plain_seams
from service.faults.plan import FailAllocation, Fault, LoseDevice

BLOCK_TOKENS, NUM_BLOCKS = 4, 64


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltRunner:
    folder: Path = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(folder)
    settings = EngineSettings(
        model=str(folder), dtype="float32", block_tokens=BLOCK_TOKENS, kv_blocks=NUM_BLOCKS
    )
    return build_runner(settings, lambda _: None)


def prompts() -> list[list[int]]:
    draws = np.random.default_rng(7)
    return [draws.integers(3, VOCAB_SIZE, length).tolist() for length in (5, 13, 1)]


def fresh(runner: Runner, seed: int = 0) -> tuple[RunnerDriver, list[Drive]]:
    driver = RunnerDriver(runner, NUM_BLOCKS, BLOCK_TOKENS, seed)
    return driver, [driver.sequence(tokens) for tokens in prompts()]


class Faulty:
    """The runner with faults, and what was told of them."""

    def __init__(self, built: BuiltRunner) -> None:
        self.told: list[FaultFired] = []
        self.seams = with_faults(
            plain_seams(built.runner, built.device, built.arena),
            tell=self.told.append,
            beat=lambda: None,
            load_seconds=1.0,
        )
        self.runner = self.seams.runner

    def order(self, *faults: Fault) -> None:
        now_seconds = time.monotonic()
        self.seams.inject(
            Inject([OrderedFault(i, now_seconds, fault) for i, fault in enumerate(faults)])
        )


def test_looking_on_changes_no_bit(built: BuiltRunner) -> None:
    driver, drives = fresh(built.runner)
    expected = driver.step([(drive, len(drive.tokens)) for drive in drives], all_rows=True)
    operators: list[int] = []
    imported = set(sys.modules)
    watched_driver, drives = fresh(built.runner)
    with BeforeOperators(operators.append):
        watched = watched_driver.step([(drive, len(drive.tokens)) for drive in drives], True)
    assert np.array_equal(expected.view(np.uint32), watched.view(np.uint32))
    assert operators == list(range(len(operators)))
    assert len(operators) > 100  # it has seen the model's
    assert set(sys.modules) == imported  # or a step would stand still for seconds


def test_a_step_that_failed_anywhere_can_be_computed_again(built: BuiltRunner) -> None:
    """What the failed tries wrote is written over, whatever it was."""
    expected = RunnerDriver.generate(*fresh(built.runner), 12, 4)
    faulty = Faulty(built)
    faulty.order(FailAllocation(nth=2, count=1000, chance=0.7, seed=5))
    failures: list[DeviceOutOfMemoryError] = []

    class Patient:
        """A runner that is tried until it succeeds."""

        def forward(self, batch: object) -> object:
            while True:
                try:
                    return faulty.runner.forward(batch)  # type: ignore[arg-type]
                except DeviceOutOfMemoryError as error:
                    failures.append(error)

    driver, drives = fresh(Patient(), seed=3)  # type: ignore[arg-type]
    assert driver.generate(drives, 12, 4) == expected
    assert len(failures) == len(faulty.told) > 20
    assert all(error.wanted_bytes > 0 for error in failures)
    # Some were raised by the allocator inside, which does not say what the device has left.
    assert {error.free_bytes is None for error in failures} == {True, False}
    figures = built.device.figures()
    assert figures.reclaimable_bytes <= figures.total_bytes - figures.free_bytes


def test_a_failed_step_claims_nothing_any_more(built: BuiltRunner) -> None:
    faulty = Faulty(built)
    built.device.release_cached()
    before = dict(built.device.figures().by_owner)
    faulty.order(FailAllocation(count=20, seed=1))
    driver, drives = fresh(faulty.runner)
    for _ in range(20):
        with pytest.raises(DeviceOutOfMemoryError):
            driver.step([(drives[0], 5)])
    built.device.release_cached()
    after = dict(built.device.figures().by_owner)
    changed = {owner for owner in before if before[owner] != after[owner]}
    assert {owner.name for owner in changed} <= {"OTHERS"}  # other processes


def test_a_lost_device_is_told_from_lack_of_memory(built: BuiltRunner) -> None:
    for seed in range(4):
        faulty = Faulty(built)
        faulty.order(*[LoseDevice(nth_step=2)] * (seed + 1))
        driver, drives = fresh(faulty.runner)
        driver.step([(drives[0], 5)])
        for _ in range(3):
            with pytest.raises(DeviceLostError):
                driver.step([(drives[1], 5)])
        assert len(faulty.told) == 1
