"""Where flight records are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class NoHomeError(Exception):
    """There is no folder of this user to put records into: flight_folder must say where."""


def folder_path(flight_folder: str | None, environment: Mapping[str, str]) -> Path:
    """The folder of a setting; None: where the XDG base directory specification puts state.

    Raises NoHomeError.
    """
    try:
        if flight_folder is not None:
            return Path(flight_folder).expanduser()
        state = Path(environment.get("XDG_STATE_HOME", ""))
        if not state.is_absolute():  # to be ignored then, says the specification
            state = Path("~/.local/state").expanduser()
    except RuntimeError as error:  # a user without an entry and without HOME
        raise NoHomeError(str(error)) from error
    return state / "plimsoll" / "flight"
