"""A dashboard of sections, with all that ours have in quantities."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from dashboards.boards.annotations import Event
from dashboards.boards.ids import identify
from dashboards.boards.panels import PanelBuilder
from dashboards.boards.variables import datasource, scope

TAG = "plimsoll"
GRID_COLUMNS = 24


class LayoutError(ValueError):
    """Panels do not fill the lines of a section: the builder would let them overlap."""


@dataclass(frozen=True, slots=True)
class Section:
    """Panels under a common title, line by line."""

    title: str
    panels: tuple[PanelBuilder, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard that is built."""

    uid: str
    title: str
    model: models.Dashboard

    @property
    def file_name(self) -> str:
        """Of its JSON."""
        return f"{self.uid}.json"

    def text(self) -> str:
        """Its JSON, the same for the same dashboard."""
        return json.dumps(self.model, cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def board(
    uid: str,
    title: str,
    description: str,
    sections: Sequence[Section],
    events: Sequence[Event],
    tags: Sequence[str] = (),
) -> Board:
    """Build a dashboard.

    Raises:
        LayoutError: a line of panels is not exactly as wide as the grid, or uneven.
        IdError: two panels have the same title.
    """
    builder = (
        builders.Dashboard(f"Plimsoll / {title}")
        .uid(uid)
        .description(description)
        .tags([TAG, *tags])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("utc")
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .readonly()
        .with_variable(datasource())
        .link(_siblings())
    )
    for variable in scope():
        builder.with_variable(variable)
    for event in events:
        builder.annotation(event)
    for section in sections:
        builder.with_row(builders.Row(section.title))
        _check_layout(section)
        for panel in section.panels:
            builder.with_panel(panel)
    model = builder.build()
    identify(uid, model)
    return Board(uid, title, model)


def _siblings() -> builders.DashboardLink:
    """Links to the other dashboards, which then show the same servers at the same time."""
    return (
        builders.DashboardLink("Plimsoll")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )


def _check_layout(section: Section) -> None:
    column, line_height = 0, 0
    for builder in section.panels:
        panel = builder.build()
        position = panel.grid_pos
        if position is None:
            raise LayoutError(f"{section.title}: {panel.title!r} has no size")
        if column and position.h != line_height:
            raise LayoutError(
                f"{section.title}: {panel.title!r} is {position.h} high in a line of {line_height}"
            )
        column, line_height = column + position.w, position.h
        if column > GRID_COLUMNS:
            raise LayoutError(f"{section.title}: {panel.title!r} ends at {column} columns")
        column %= GRID_COLUMNS
    if column:
        raise LayoutError(f"{section.title}: the last line ends at {column} of {GRID_COLUMNS}")
