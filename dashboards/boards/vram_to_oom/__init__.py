"""The way to an out-of-memory error: from normal over each precursor to what survived it."""

from __future__ import annotations

from dashboards.boards import uids
from dashboards.boards.annotations import all_events
from dashboards.boards.board import Board, Section, board
from dashboards.boards.vram_to_oom import measures, nearness, owners, state, trust


def build() -> Board:
    """The dashboard."""
    return board(
        uids.VRAM_TO_OOM,
        "VRAM to OOM",
        "Why memory runs out, when, and what was done about it. Choose one pod; read from top to "
        "bottom along the crosshair.",
        (
            Section("Where we are", state.panels()),
            Section("Who has the memory", owners.panels()),
            Section("How near the end", nearness.panels()),
            Section("What is done about it", measures.panels()),
            Section("What clients notice", measures.symptoms()),
            Section("Can these numbers be trusted", trust.panels()),
        ),
        all_events(),
        ("oom",),
    )
