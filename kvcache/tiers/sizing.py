"""How large a host tier may be on this machine."""

from __future__ import annotations

import logging

_logger = logging.getLogger("kvcache.tiers")


def affordable_bytes(wanted_bytes: int, spare_bytes: int, available_bytes: int) -> int:
    """As much of `wanted_bytes` as leaves `spare_bytes` of the available memory untouched.

    Writes a warning when that is less than wanted. A host tier that takes the last of the
    memory gets the process killed, and one that refuses to start is no better.
    """
    granted = max(0, min(wanted_bytes, available_bytes - spare_bytes))
    if granted < wanted_bytes:
        _logger.warning(
            "host tier: gets %d bytes instead of %d, %d are available and %d of these are spared",
            granted,
            wanted_bytes,
            available_bytes,
            spare_bytes,
        )
    return granted
