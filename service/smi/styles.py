"""Colours, and the words and letters that say the same where there are none."""

from __future__ import annotations

from rich.text import Text

_LEVELS = {
    1: ("NORMAL", "black on green"),
    2: ("ELEVATED", "black on yellow"),
    3: ("HIGH", "white on dark_orange3"),
    4: ("CRITICAL", "bold white on red"),
}
STATES = {"ready": "green", "starting": "yellow", "restarting": "red", "failed": "bold red"}
ALARM = "bold white on red"

# Letter and style of each part of a bar.
OWNERS = {
    "weights": ("W", "black on cyan"),
    "kv_pool": ("K", "black on green"),
    "activations": ("A", "black on yellow"),
    "graphs": ("G", "white on blue"),
    "context": ("C", "white on magenta"),
    "others": ("O", "white on red"),
    "free": (".", "dim"),
}
BLOCK_STATES = {
    "active": ("A", "black on green"),
    "reserved": ("R", "black on yellow"),
    "kept": ("K", "white on magenta"),
    "cached": ("c", "black on cyan"),
    "free": (".", "dim"),
}
STRANGE = ("?", "white on bright_black")  # of a newer server

_SOON_SECONDS, _NEAR_SECONDS = 60.0, 300.0


def level_text(level: int | None) -> Text:
    """The pressure level; of a newer server, its number."""
    if level is None:
        return Text("UNKNOWN")
    name, style = _LEVELS.get(level, (f"LEVEL {level}", ""))
    return Text(name, style)


def exhaustion_style(seconds: float | None) -> str:
    """Of a forecast, by how near it is."""
    if seconds is None or seconds >= _NEAR_SECONDS:
        return ""
    return "bold red" if seconds < _SOON_SECONDS else "yellow"
