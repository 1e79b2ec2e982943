"""What holds for every dashboard, read from the files that are installed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dashboards.boards import all_boards, ids, panels, uids
from dashboards.boards.annotations import usual_events
from dashboards.boards.board import GRID_COLUMNS, LayoutError, Section, board
from dashboards.boards.panels import Note, Unit
from dashboards.boards.queries import Query
from dashboards.build import FOLDER, expected_files, main, stale_files, write

SIZE_LIMIT_BYTES = 200 * 1024
PANEL_TYPES = {"timeseries", "stat", "bargauge", "state-timeline", "heatmap"}
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

FILES = sorted(FOLDER.glob("*.json"))
BOARDS = {path.stem: json.loads(path.read_text("utf-8")) for path in FILES}
# What the data source reads of an annotation and the models do not know.
EVENT_FIELDS = ("titleFormat", "useValueForTime")

each_board = pytest.mark.parametrize("uid", BOARDS)


def rows_and_panels(uid: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = BOARDS[uid]["panels"]
    return found


def drawn(uid: str) -> Iterator[dict[str, Any]]:
    return (panel for panel in rows_and_panels(uid) if panel["type"] != "row")


def test_the_files_are_as_the_code_has_them() -> None:
    assert stale_files(FOLDER, expected_files()) == []
    assert main(["--check"]) == 0


def test_building_twice_gives_the_same() -> None:
    assert expected_files() == expected_files()


def test_each_dashboard_has_its_own_lasting_uid() -> None:
    assert set(BOARDS) == set(uids.ALL)
    assert [BOARDS[uid]["uid"] for uid in uids.ALL] == list(uids.ALL)
    assert (
        *("plimsoll-overview", "plimsoll-kv-cache", "plimsoll-vram-to-oom"),
        *("plimsoll-latency", "plimsoll-operator", "plimsoll-tenants"),
    ) == uids.ALL


@each_board
def test_a_dashboard_is_small_and_read_only(uid: str) -> None:
    assert (FOLDER / f"{uid}.json").stat().st_size < SIZE_LIMIT_BYTES
    dashboard = BOARDS[uid]
    assert dashboard["editable"] is False
    assert dashboard["timezone"] == "utc"
    assert dashboard["graphTooltip"] == 1  # a crosshair over all panels
    assert "plimsoll" in dashboard["tags"]


@each_board
def test_a_dashboard_reads_back_as_it_was_written(uid: str) -> None:
    expected = json.loads(json.dumps(BOARDS[uid]))
    for event in expected["annotations"]["list"]:
        for field in EVENT_FIELDS:
            del event[field]
    read = Dashboard.from_json(BOARDS[uid])
    assert json.loads(json.dumps(read, cls=JSONEncoder)) == expected


@each_board
def test_ids_are_unique_and_follow_from_titles(uid: str) -> None:
    found = [panel["id"] for panel in rows_and_panels(uid)]
    assert len(set(found)) == len(found)
    for panel in rows_and_panels(uid):
        of = ids.row_id if panel["type"] == "row" else ids.panel_id
        assert panel["id"] == of(uid, panel["title"])


def test_an_id_that_others_link_to_stays() -> None:
    assert ids.panel_id(uids.VRAM_TO_OOM, "Headroom against demand") == 505038535


@each_board
def test_a_panel_says_what_it_means_and_what_to_do(uid: str) -> None:
    for panel in drawn(uid):
        meaning, action = panel["description"].split("\n\n**What to do:** ")
        assert len(meaning) > 10, panel["title"]
        assert len(action) > 10, panel["title"]


@each_board
def test_a_panel_has_a_unit_and_limits_of_its_own(uid: str) -> None:
    for panel in drawn(uid):
        defaults = panel["fieldConfig"]["defaults"]
        assert defaults["unit"], panel["title"]
        assert defaults["thresholds"]["steps"][0]["value"] is None, panel["title"]


@each_board
@pytest.mark.parametrize("namespace", ["prod", "goal", "used", "driver", "meaningful", "nowhere"])
def test_a_look_is_that_of_one_series_whatever_servers_are_called(uid: str, namespace: str) -> None:
    for panel in drawn(uid):
        names = [
            target["legendFormat"].replace("{{namespace}}", namespace)
            for target in panel["targets"]
        ]
        for override in panel["fieldConfig"].get("overrides", ()):
            pattern = override["matcher"]["options"].strip("/")
            found = [name for name in names if re.search(pattern, name)]
            assert len(found) == 1, (panel["title"], pattern, found)


@each_board
def test_panels_are_of_kinds_that_grafana_still_draws(uid: str) -> None:
    assert {panel["type"] for panel in drawn(uid)} <= PANEL_TYPES


@each_board
def test_all_questions_go_to_the_chosen_data_source(uid: str) -> None:
    for panel in drawn(uid):
        assert panel["datasource"] == DATASOURCE
        assert panel["targets"]
        assert [target["datasource"] for target in panel["targets"]] == [DATASOURCE] * len(
            panel["targets"]
        )
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
    for event in BOARDS[uid]["annotations"]["list"]:
        assert event["datasource"] == DATASOURCE
    variables = {variable["name"]: variable for variable in BOARDS[uid]["templating"]["list"]}
    assert list(variables) == ["datasource", "namespace", "model", "pod"]
    assert variables.pop("datasource")["query"] == "prometheus"
    for variable in variables.values():
        assert variable["datasource"] == DATASOURCE
        assert (variable["multi"], variable["includeAll"]) == (True, True)
        assert variable["current"]["value"] == "$__all"


@each_board
def test_a_number_of_now_is_not_that_of_a_series_that_is_gone(uid: str) -> None:
    for panel in drawn(uid):
        if panel["type"] in ("stat", "bargauge"):
            assert panel["options"]["reduceOptions"]["calcs"] == ["last"]
            assert all(target["instant"] for target in panel["targets"])


@each_board
def test_links_keep_time_and_variables(uid: str) -> None:
    (link,) = BOARDS[uid]["links"]
    assert (link["keepTime"], link["includeVars"], link["tags"]) == (True, True, ["plimsoll"])


@each_board
def test_panels_do_not_overlap(uid: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in rows_and_panels(uid):
        place = panel["gridPos"]
        cells = {
            (column, line)
            for column in range(place["x"], place["x"] + place["w"])
            for line in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= GRID_COLUMNS
        taken |= cells


def panel_of(title: str, width: int, height: int = 8) -> panels.PanelBuilder:
    note = Note("It means something.", "Do something.")
    query = Query("vector(1)", "one")
    return panels.lines(title, query, unit=Unit.COUNT, note=note, width=width, height=height)


def build(*of: panels.PanelBuilder) -> None:
    board("uid", "Title", "Text.", (Section("Row", of),), usual_events())


@pytest.mark.parametrize(
    ("shapes", "complaint"),
    [
        ([(12, 8), (11, 8)], "the last line ends at 23 of 24"),
        ([(12, 8), (13, 8)], "'b' ends at 25 columns"),
        ([(12, 8), (12, 7)], "'b' is 7 high in a line of 8"),
    ],
)
def test_a_line_that_is_not_full_is_refused(shapes: list[tuple[int, int]], complaint: str) -> None:
    made = [panel_of(name, *shape) for name, shape in zip("ab", shapes, strict=True)]
    with pytest.raises(LayoutError, match=complaint):
        build(*made)


def test_two_panels_of_a_title_are_refused() -> None:
    with pytest.raises(ids.IdError, match="'same' and 'same' have the same id"):
        build(panel_of("same", 12), panel_of("same", 12))


def test_a_row_may_have_the_title_of_a_panel() -> None:
    build(panel_of("Row", 24))


@each_board
def test_an_event_is_where_a_count_grows_or_when_its_value_says(uid: str) -> None:
    events = BOARDS[uid]["annotations"]["list"]
    assert {"Out of memory", "Engine restarts", "Admin actions"} <= {
        each["name"] for each in events
    }
    for event in events:
        dated = event["expr"].startswith("1000 * plimsoll_")
        assert dated == ("_timestamp_seconds{" in event["expr"])
        assert dated or "(increase(plimsoll_" in event["expr"]
        assert event["useValueForTime"] is dated


def test_writing_replaces_what_is_stale_and_nothing_else(tmp_path) -> None:
    (tmp_path / "old.json").write_text("{}")
    (tmp_path / "a.json").write_text("of yesterday")
    (tmp_path / "README.md").write_text("stays")
    expected = {"a.json": "new", "b.json": "also new"}
    assert stale_files(tmp_path, expected) == ["a.json", "b.json", "old.json"]
    write(tmp_path, expected)
    assert stale_files(tmp_path, expected) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "a.json", "b.json"]


def test_the_files_are_those_of_the_boards() -> None:
    assert {built.file_name for built in all_boards()} == {path.name for path in FILES}
