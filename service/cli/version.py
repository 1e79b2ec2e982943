"""Print the version of Plimsoll."""

from __future__ import annotations

import argparse
from importlib.metadata import version

EXAMPLES = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(arguments: argparse.Namespace) -> int:  # noqa: ARG001 (every command has this form)
    print(f"plimsoll {version('plimsoll')}")
    return 0
