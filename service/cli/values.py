"""Argument types: they check bounds and say what is wrong in words.

The bounds are those of the API's fields, so that a mistake is told before a server is asked.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable

from service.cli.failure import CommandError

UINT32_MAX, UINT64_MAX = 2**32 - 1, 2**64 - 1


def whole(minimum: int, maximum: int = UINT32_MAX) -> Callable[[str], int]:
    """An integer in [minimum, maximum]."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer") from None
        if value < minimum:
            raise argparse.ArgumentTypeError(f"{value} is less than {minimum}")
        if value > maximum:
            raise argparse.ArgumentTypeError(f"{value} is more than {maximum}")
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


def utf8_text(value: str) -> str:
    """Text that can be sent: bytes of the command line that are not UTF-8 cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{value!a} is not valid UTF-8") from None
    return value


def printable_ascii(value: str) -> str:
    """Text that fits a header of a call."""
    if not (value.isascii() and value.isprintable()):
        raise argparse.ArgumentTypeError(f"{value!a} is not printable ASCII")
    return value


def read_prompt(argument: str) -> str:
    """The argument itself, or all of stdin for "-"."""
    if argument != "-":
        return argument
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise CommandError(f"stdin is not valid UTF-8: {error}") from error
