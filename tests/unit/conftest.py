"""Fixtures of several unit tests."""

from __future__ import annotations

from functools import partial

import pytest
from kv_cores import NewManager, needs_native

from kvcache import CacheManager


@pytest.fixture(params=["python", pytest.param("native", marks=needs_native)])
def new_manager(request: pytest.FixtureRequest) -> NewManager:
    """Makes a manager from num_blocks, block_tokens and options, once with each core."""
    return partial(CacheManager, core=request.param)
