"""Renderables that fill the columns that there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.text import Text

from service.smi.bar import segment_widths


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a bar: a letter that stands for it where there are no colours."""

    letter: str
    style: str
    amount: float


class Bar:
    """Parts of a whole, between brackets."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        columns = max(0, options.max_width - 2)
        widths = segment_widths([part.amount for part in self._parts], columns)
        yield Segment("[")
        for part, width in zip(self._parts, widths, strict=True):
            yield Segment(part.letter * width, console.get_style(part.style))
        yield Segment(" " * (columns - sum(widths)))
        yield Segment("]")


class Flow:
    """Items one after another; a line ends between two of them, and within one only where that
    one is longer than a line."""

    GAP = "  "

    def __init__(self, items: Sequence[Text]) -> None:
        self._items = items

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        line = Text(overflow="fold")
        for item in self._items:
            if line and line.cell_len + len(self.GAP) + item.cell_len > options.max_width:
                yield line
                line = Text(overflow="fold")
            if line:
                line.append(self.GAP)
            line.append_text(item)
        yield line
