"""Argument types: they check bounds and say what is wrong in words."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(minimum: int) -> Callable[[str], int]:
    """An integer of at least `minimum`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is less than {minimum}")
        return value

    return parse


def number(minimum: float, maximum: float = math.inf) -> Callable[[str], float]:
    """A finite number in [minimum, maximum]."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not (minimum <= value <= maximum and math.isfinite(value)):
            raise argparse.ArgumentTypeError(f"{text} is not in [{minimum:g}, {maximum:g}]")
        return value

    return parse


def positive(text: str) -> float:
    """A finite number above 0."""
    value = number(0)(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be more than 0")
    return value
