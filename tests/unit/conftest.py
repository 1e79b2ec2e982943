"""Fixtures of several unit tests."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
from kv_core_driver import CoreDriver, NewCore
from kv_cores import NewManager, needs_native

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
