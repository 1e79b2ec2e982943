"""Reads a fault plan from a file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from service.faults.plan import FaultPlan


class FaultPlanError(Exception):
    """A file that holds no fault plan: which one, and why."""

    def __init__(self, path: Path, cause: str) -> None:
        super().__init__(f"fault plan {path}: {cause}")
        self.path = path
        self.cause = cause


def read_plan(path: Path) -> FaultPlan:
    """The plan in a file, as JSON where its name ends in .json, else as TOML.

    Raises FaultPlanError, which names the field that is wrong.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FaultPlanError(path, error.strerror or str(error)) from error
    decode = msgspec.json.decode if path.suffix == ".json" else msgspec.toml.decode
    try:
        return decode(data, type=FaultPlan)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FaultPlanError(path, str(error)) from error
