"""How an engine is to write its logs: as the front does."""

from __future__ import annotations

from typing import Literal

import msgspec

# How the front tells them to an engine, as JSON; not set: the defaults.
LOGS_VARIABLE = "PLIMSOLL_ENGINE_LOGS"


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of the same names, without `log_`; they have the same defaults."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "console"] = "auto"
    repeats: int = 60  # most records of one event in a minute; 0: no limit
