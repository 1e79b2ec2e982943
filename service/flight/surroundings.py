"""What a server ran with: settings and versions."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import re
from typing import Any

import msgspec

from service.config import ServeSettings

_PACKAGES = ("plimsoll", "torch", "numpy", "grpcio", "msgspec")
# User, password and query of a URL.
_SECRETS = re.compile(r"(?<=://).*@|\?.*")


def without_secrets(settings: ServeSettings) -> dict[str, Any]:
    """The settings in force, without the passwords of URLs."""

    def masked(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: masked(part) for name, part in value.items()}
        return _SECRETS.sub("***", value) if isinstance(value, str) and "://" in value else value

    facts: dict[str, Any] = masked(msgspec.to_builtins(settings))
    return facts


@functools.cache
def versions() -> dict[str, str | None]:
    """Of the packages that matter, None for one that is not installed. Slow the first time."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found
