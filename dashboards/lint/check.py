"""All rules over all files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dashboards.lint import alert_rules, board_rules, query, query_rules
from dashboards.lint.finding import Finding, Place
from dashboards.lint.series import Series, exported, recorded

Json = Mapping[str, Any]
QueryRule = Callable[[query.Node, Mapping[str, Series]], Iterator[str]]


def check(
    boards: Mapping[str, Json], rules: Json, rules_file: str, runbooks: set[str]
) -> list[Finding]:
    """Findings in dashboards by file name, a file of Prometheus rules, and what these lead to."""
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    known = exported() | {rule["record"]: recorded() for rule in alerts if "record" in rule}
    found = [
        Finding(Place(file, ""), board_rules.uids_are_unique.__name__, message)
        for file, message in board_rules.uids_are_unique(boards)
    ]
    for file, board in boards.items():
        for rule in board_rules.RULES:
            found += [Finding(Place(file, name), rule.__name__, text) for name, text in rule(board)]
        for name, text in board_rules.expressions(board):
            found += check_query(Place(file, name), text, query_rules.ON_DASHBOARDS, known)
    panels = {
        board["uid"]: {str(panel["id"]) for panel in board_rules.graphs(board)}
        for board in boards.values()
    }
    for alert in alerts:
        place = Place(rules_file, alert.get("alert") or alert["record"])
        found += check_query(place, alert["expr"], query_rules.EVERYWHERE, known)
        if "alert" in alert:
            messages = alert_rules.runbook_resolves(alert, runbooks)
            found += [Finding(place, "runbook_resolves", text) for text in messages]
            messages = alert_rules.panel_resolves(alert, panels)
            found += [Finding(place, "panel_resolves", text) for text in messages]
    return found


def check_query(
    place: Place, text: str, rules: Sequence[QueryRule], known: Mapping[str, Series]
) -> list[Finding]:
    """Findings in one expression."""
    try:
        root = query.parse(text)
    except query.NotPromqlError as error:
        return [Finding(place, "parses", str(error))]
    return [Finding(place, rule.__name__, found) for rule in rules for found in rule(root, known)]


def check_folder(folder: Path) -> list[Finding]:
    """Findings in the files as they are committed. `folder` has json, alerts and runbooks."""
    boards = {
        path.name: json.loads(path.read_text()) for path in sorted(folder.glob("json/*.json"))
    }
    rules = folder / "alerts" / "generated" / "prometheus-rules.yaml"
    runbooks = {path.name for path in folder.glob("runbooks/*.md")}
    return check(boards, yaml.safe_load(rules.read_text()), rules.name, runbooks)
