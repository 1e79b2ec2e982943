"""How `plimsoll smi` draws committed pages of metrics, compared with committed pictures.

After an intended change: `PLIMSOLL_UPDATE_GOLDEN=1 pytest tests/unit/test_smi_picture.py`, and
look at the difference.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from service.smi.document import document
from service.smi.look import Look, view
from service.smi.overview import overview
from service.smi.page import Page
from service.smi.picture import picture
from service.smi.view import ServerView, SilentView
from service.telemetry.catalog import METRICS

PAGES = Path(__file__).parent / "smi_pages"
NOW_SECONDS = 1796086923.5
SILENT = SilentView("10.0.0.9:9002", "Connection refused")


def look(name: str, ago_seconds: float = 0.0) -> Look:
    page = Page.parse((PAGES / f"{name}.txt").read_text())
    return Look.after(None, page, NOW_SECONDS - ago_seconds, 100.0 - ago_seconds)


def live() -> list[ServerView | SilentView]:
    return [
        view("10.0.0.7:9002", look("after"), look("before", 2.0)),
        view("10.0.0.8:9002", look("other_release"), None),
        SILENT,
    ]


def drawn(servers: list[ServerView | SilentView], width: int, **console: object) -> str:
    out = io.StringIO()
    options = {"file": out, "width": width, "highlight": False, **console}
    at = datetime.fromtimestamp(NOW_SECONDS, UTC)
    Console(**options).print(picture(servers, at, "0.1.0"))  # type: ignore[arg-type]
    return out.getvalue()


def is_as_committed(name: str, text: str) -> bool:
    path = PAGES / name
    if os.environ.get("PLIMSOLL_UPDATE_GOLDEN"):
        path.write_text(text)
    return text == path.read_text()


@pytest.mark.parametrize("width", [80, 120])
def test_the_picture_is_the_one_that_was_looked_at(width: int) -> None:
    assert is_as_committed(f"picture_{width}.golden", drawn(live(), width))


@pytest.mark.parametrize("width", [80, 120])
def test_the_overview_has_a_line_for_each_server(width: int) -> None:
    out = io.StringIO()
    Console(file=out, width=width).print(overview(live()))
    assert is_as_committed(f"overview_{width}.golden", out.getvalue())


def test_the_first_look_is_at_all_since_the_start() -> None:
    text = drawn([view("10.0.0.7:9002", look("after"), None)], 80)
    assert is_as_committed("first_look_80.golden", text)


def test_the_document_is_the_one_that_programs_read() -> None:
    text = document(live(), datetime.fromtimestamp(NOW_SECONDS, UTC), "0.1.0")
    assert "\n" not in text
    pretty = json.dumps(json.loads(text), indent=1) + "\n"
    assert is_as_committed("document.golden", pretty)


@pytest.mark.parametrize("width", [20, 40, 60, 79, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = drawn(live(), width).splitlines()
    assert {len(line) for line in lines} == {width}
    if width >= 40:  # below that even the words are cut
        assert any(" HIGH " in line for line in lines)


def test_a_picture_in_a_pipe_is_plain_ascii_and_one_on_a_terminal_has_colours() -> None:
    plain = drawn(live(), 80)
    assert plain.isascii()
    assert "\x1b" not in plain
    assert "\x1b[" in drawn(live(), 80, force_terminal=True, color_system="256")


def test_colours_are_left_out_where_they_are_not_wanted() -> None:
    options = {"force_terminal": True, "color_system": "256", "no_color": True}
    codes = drawn(live(), 80, **options).split("\x1b[")[1:]
    assert codes
    assert {code.split("m")[0] for code in codes} <= {"0", "1", "2"}  # bold, and dim


def test_every_owner_of_memory_is_in_the_bar_and_in_the_legend() -> None:
    lines = drawn(live(), 80).splitlines()
    bar = next(line for line in lines if line.startswith("| memory"))
    legend = "".join(line for line in lines[lines.index(bar) :][1:4])
    for letter, owner in zip(
        "WKAGCO", ("weights", "kv_pool", "activations", "graphs", "context", "others"), strict=True
    ):
        assert letter in bar
        assert f"{letter} {owner} " in legend


def test_the_pages_are_of_this_catalogue() -> None:
    for name in ("before", "after"):
        page = (PAGES / f"{name}.txt").read_text()
        names = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")}
        assert names <= METRICS.keys()


def test_a_step_that_does_not_fit_is_told_in_words() -> None:
    (server,) = live()[:1]
    assert isinstance(server, ServerView)
    for demand_bytes, words in ((1600, "OUT OF MEMORY NEXT"), (1300, ": thin"), (900, "")):
        memory = replace(
            server.memory, headroom_bytes=1500 * 2**20, demand_bytes=demand_bytes * 2**20
        )
        text = drawn([replace(server, memory=memory)], 100)
        for each in ("OUT OF MEMORY NEXT", ": thin"):
            assert (each in text) == (each == words)
