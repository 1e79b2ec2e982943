"""What operators can order."""

from __future__ import annotations

import enum


class AdminAction(enum.Enum):
    """An order that changes something; questions are none."""

    SET_MEMORY_UTILIZATION = "set_memory_utilization"
    FLUSH = "flush"
    DRAIN = "drain"
    RESUME = "resume"
    INJECT_FAULTS = "inject_faults"
