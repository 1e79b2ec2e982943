"""Identities of panels, which the builders do not give.

Links to a panel and alerts hold its id. It follows from the dashboard and the title, so that it
stays when panels come, go and move; only a new title makes it another panel.
"""

from __future__ import annotations

import zlib

from grafana_foundation_sdk.models.dashboard import Dashboard, Panel, RowPanel


class IdError(ValueError):
    """Two panels of a dashboard would have the same id."""


def panel_id(uid: str, title: str) -> int:
    """Id of the panel `title` of the dashboard `uid`: positive, of 31 bits."""
    return _id(f"{uid}/panel/{title}")


def row_id(uid: str, title: str) -> int:
    """Id of a row, which is another than that of a panel of the same title."""
    return _id(f"{uid}/row/{title}")


def identify(uid: str, dashboard: Dashboard) -> None:
    """Give each panel and row its id.

    Raises:
        IdError: two have the same title, or their ids collide.
    """
    owners: dict[int, str] = {}
    for part in dashboard.panels or ():
        title = part.title or ""
        part.id_val = _id_of(uid, part, title)
        if part.id_val in owners:
            raise IdError(f"{uid}: {title!r} and {owners[part.id_val]!r} have the same id")
        owners[part.id_val] = title


def _id_of(uid: str, part: Panel | RowPanel, title: str) -> int:
    return panel_id(uid, title) if isinstance(part, Panel) else row_id(uid, title)


def _id(text: str) -> int:
    return (zlib.crc32(text.encode()) & 0x7FFFFFFF) or 1
