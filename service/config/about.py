"""How a setting describes itself."""

from __future__ import annotations

from typing import Any

import msgspec

MIB = 1024**2
GIB = 1024**3


def about(group: str, description: str, unit: str = "", **bounds: Any) -> msgspec.Meta:
    """Metadata of one setting; `bounds` are those of `msgspec.Meta`."""
    meta = {"description": description, "extra": {"group": group, "unit": unit}, **bounds}
    return msgspec.Meta(**meta)
