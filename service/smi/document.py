"""A look as one JSON document."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime

from service.smi.view import ServerView, SilentView


def document(servers: Sequence[ServerView | SilentView], at: datetime, version: str) -> str:
    """One line: when, and every server with the fields of `service.smi.view` as keys. A server
    that did not answer has `address` and `error`, and no other key; one that did has no `error`.
    """
    look = {
        "time_unix_seconds": at.timestamp(),
        "version": version,
        "servers": [_finite(asdict(each)) for each in servers],
    }
    return json.dumps(look, allow_nan=False)


def _finite(value: object) -> object:
    """JSON has no infinity: what a server tells so is not known."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
