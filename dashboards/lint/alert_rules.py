"""Rules on an alert of Prometheus and where it leads. Each yields a message per objection."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

Json = Mapping[str, Any]


def runbook_resolves(alert: Json, runbooks: Set[str]) -> Iterator[str]:
    """`runbooks`: names of the files there are."""
    url = alert.get("annotations", {}).get("runbook_url", "")
    if url.rpartition("/")[2] not in runbooks:
        yield f"leads to no runbook: {url or 'no URL'}"


def panel_resolves(alert: Json, panels: Mapping[str, Set[str]]) -> Iterator[str]:
    """`panels`: ids of the panels of each dashboard, by its uid."""
    annotations = alert.get("annotations", {})
    uid, panel = annotations.get("dashboard_uid"), annotations.get("panel_id")
    if panel not in panels.get(uid, frozenset()):
        yield f"leads to no panel: {panel} of {uid}"
