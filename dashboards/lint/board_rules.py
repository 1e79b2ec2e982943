"""Rules on a dashboard as Grafana reads it. Each yields a place and a message per objection."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Json = Mapping[str, Any]
Objection = tuple[str, str]  # name of what it is about, message

DATASOURCE_UID = "${datasource}"


def panels(board: Json) -> Iterator[Json]:
    """All panels, rows and what is folded into them included."""
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def graphs(board: Json) -> Iterator[Json]:
    """All panels that show data."""
    return (panel for panel in panels(board) if panel["type"] not in {"row", "text"})


def expressions(board: Json) -> Iterator[tuple[str, str]]:
    """Name of the panel or annotation, and expression."""
    for panel in graphs(board):
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for annotation in board["annotations"]["list"]:
        yield annotation["name"], annotation["expr"]


def datasource_is_variable(board: Json) -> Iterator[Objection]:
    """A dashboard that names a data source shows nothing at any other site."""

    def walk(value: object, name: str) -> Iterator[Objection]:
        if isinstance(value, Mapping):
            name = value.get("title") or value.get("name") or name
            source = value.get("datasource")
            uid = source.get("uid") if isinstance(source, Mapping) else source
            if source is not None and uid != DATASOURCE_UID:
                yield name, f"names the data source {uid}"
            for inner in value.values():
                yield from walk(inner, name)
        elif isinstance(value, list):
            for inner in value:
                yield from walk(inner, name)

    yield from walk(board, "")
    for panel in graphs(board):
        for part in (panel, *panel.get("targets", ())):
            if "datasource" not in part:
                yield panel["title"], "has a query to the default data source"


def units_are_set(board: Json) -> Iterator[Objection]:
    """Without one, bytes and seconds are bare numbers."""
    for panel in graphs(board):
        if not panel.get("fieldConfig", {}).get("defaults", {}).get("unit"):
            yield panel["title"], "has no unit"


def panels_are_explained(board: Json) -> Iterator[Objection]:
    """Whoever is woken by it asks what a panel means and what to do."""
    for panel in graphs(board):
        if "**What to do:**" not in panel.get("description", ""):
            yield panel.get("title", ""), "does not say what it means and what to do"
        if not panel.get("title"):
            yield str(panel.get("id")), "has no title"


def panels_have_queries(board: Json) -> Iterator[Objection]:
    """A panel without one is always empty."""
    for panel in graphs(board):
        if not panel.get("targets"):
            yield panel["title"], "has no query"


def panel_ids_are_unique(board: Json) -> Iterator[Objection]:
    """Links of alerts lead to a panel by its id."""
    counts = Counter(panel["id"] for panel in panels(board))
    for panel in panels(board):
        if counts[panel["id"]] > 1:
            yield panel["title"], f"shares the id {panel['id']}"


def uids_are_unique(boards: Mapping[str, Json]) -> Iterator[Objection]:
    """Grafana keeps one dashboard of a uid, the last that it read; of file name and message."""
    counts = Counter(board["uid"] for board in boards.values())
    for file, board in boards.items():
        if counts[board["uid"]] > 1:
            yield file, f"shares the uid {board['uid']}"


RULES = (
    datasource_is_variable,
    units_are_set,
    panels_are_explained,
    panels_have_queries,
    panel_ids_are_unique,
)
