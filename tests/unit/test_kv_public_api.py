"""What `import kvcache` offers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import kvcache


def test_every_public_name_is_there_and_documented() -> None:
    for name in kvcache.__all__:
        found = getattr(kvcache, name)
        assert found is not None
        if isinstance(found, type):
            assert found.__doc__, f"{name} has no docstring"


def test_type_checkers_see_the_same_names() -> None:
    stub = Path(kvcache.__file__).with_suffix(".pyi").read_text()
    seen = dict(re.findall(r"^from kvcache\.(?:[\w.]+) import (\w+) as (\w+)$", stub, re.MULTILINE))
    assert sorted(seen) == kvcache.__all__
    assert all(name == alias for name, alias in seen.items())


def test_an_unknown_name_is_told() -> None:
    with pytest.raises(AttributeError, match="'kvcache' has no attribute 'Cache'"):
        _ = kvcache.Cache  # type: ignore[attr-defined]


def test_naming_a_namespace_loads_no_numpy() -> None:
    code = (
        "import sys; from kvcache import namespace_key; namespace_key(); "
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_library_works_without_the_service_and_without_torch() -> None:
    code = """
import doctest, importlib, pkgutil, sys
for name in ("service", "torch", "grpc", "msgspec", "structlog", "redis", "matplotlib"):
    sys.modules[name] = None  # importing it raises ImportError
import kvcache.replay
for module in pkgutil.walk_packages(kvcache.__path__, "kvcache."):
    if not module.name.startswith("kvcache.attention."):
        importlib.import_module(module.name)
assert not doctest.testmod(kvcache).failed
assert not doctest.testmod(kvcache.replay).failed
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
