"""Fixtures of several unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from kv_core_driver import CoreDriver, NewCore
from kv_cores import NewManager, needs_native
from kv_tier_engine import Engine, NewEngine
from kv_tier_fakes import Clock, FakeTier

from kvcache import CacheManager


@pytest.fixture(params=["python", pytest.param("native", marks=needs_native)])
def new_manager(request: pytest.FixtureRequest) -> NewManager:
    """Makes a manager from num_blocks, block_tokens and options, once with each core."""
    return partial(CacheManager, core=request.param)


@pytest.fixture(params=["python", pytest.param("native", marks=needs_native)])
def new_core(request: pytest.FixtureRequest) -> Iterator[NewCore]:
    """Makes cores of one kind from num_blocks and block_tokens; they are audited in the end."""
    made: list[CoreDriver] = []

    def make(num_blocks: int, block_tokens: int = 2) -> CoreDriver:
        made.append(CoreDriver(request.param, num_blocks, block_tokens))
        return made[-1]

    yield make
    for driver in made:
        driver.core.audit()


@pytest.fixture
def clock() -> Clock:
    """Time that passes when the test says so."""
    return Clock()


@pytest.fixture
def store() -> FakeTier:
    """A store below the host tier that can be slow, fail, or never answer."""
    return FakeTier()


@pytest.fixture
def new_engine(clock: Clock, store: FakeTier) -> Iterator[NewEngine]:
    """Makes devices with tiers below them; nothing is left of their loads in the end."""
    engines: list[Engine] = []

    def opened(**settings: object) -> Engine:
        engines.append(Engine(clock, **settings))  # type: ignore[arg-type]
        return engines[-1]

    yield opened
    store.open_all()
    for engine in engines:
        engine.manager.audit()
        for transfer in list(engine.offload._loads._open.values()):
            engine.offload.cancel(transfer)
        assert engine.host.pinned_blocks == 0
        assert engine.manager.stats().loading == 0
        engine.offload.close()
