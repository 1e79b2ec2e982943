"""The cores of the cache manager, for tests that must hold for each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import pytest

from kvcache import CacheManager

NewManager = Callable[..., CacheManager]
NATIVE_IS_BUILT = importlib.util.find_spec("kvcache._native") is not None
needs_native = pytest.mark.skipif(not NATIVE_IS_BUILT, reason="the native core was not built")
