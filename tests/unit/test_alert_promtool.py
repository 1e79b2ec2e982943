"""The rules as Prometheus evaluates them: each alert fires when it should, and only then."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from alert_cases import (
    CASES,
    CLIMB,
    CLIMB_BEGIN_SECONDS,
    CLIMB_END_SECONDS,
    CLIMB_LEADS,
    SCRAPE_SECONDS,
    Case,
)
from prometheus_tools import tool

from dashboards.alerts import ALERTS, GENERATED
from dashboards.alerts.spec import EVALUATION_SECONDS, GROUPS, RECORDINGS

RULES = GENERATED / "prometheus-rules.yaml"
# Evaluations for which each alert is pending before it fires.
WAITS = {alert.name: alert.for_seconds // EVALUATION_SECONDS for alert in ALERTS}


@pytest.mark.parametrize("fires", [True, False], ids=["firing", "silent"])
def test_each_alert_has_a_case(fires: bool) -> None:
    cases = {case.alert for case in CASES if case.fires is fires}
    assert cases == {alert.name for alert in ALERTS}


@pytest.mark.prometheus
def test_promtool_takes_the_rules() -> None:
    done = run("promtool", "check", "rules", str(RULES))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS) + len(RECORDINGS)} rules" in done.stdout


@pytest.mark.prometheus
@pytest.mark.slow
def test_each_case(tmp_path: Path) -> None:
    paths = [str(cases_of(tmp_path, alert.name)) for alert in ALERTS]
    done = run("promtool", "test", "rules", *paths)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
def test_precursors_fire_before_the_end_of_a_climb(tmp_path: Path) -> None:
    expected = [
        fires_at("PlimsollOutOfMemory", CLIMB_END_SECONDS - SCRAPE_SECONDS, False),
        fires_at("PlimsollOutOfMemory", CLIMB_END_SECONDS, True),
    ]
    for alert, lead_seconds in CLIMB_LEADS.items():
        expected.append(fires_at(alert, CLIMB_BEGIN_SECONDS, False))
        expected.append(fires_at(alert, CLIMB_END_SECONDS - lead_seconds, True))
    climb = {**promtool_test(CLIMB), "promql_expr_test": expected}
    path = document(tmp_path / "climb.test.yaml", RULES, [climb])
    done = run("promtool", "test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def fires_at(alert: str, seconds: int, fires: bool) -> dict[str, object]:
    return {
        "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
        "eval_time": f"{seconds}s",
        "exp_samples": [{"value": int(fires)}],
    }


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("severity", "receiver"),
    [("critical", "on-call"), ("warning", "day-team"), ("info", "nobody")],
)
def test_an_alert_finds_its_receiver(severity: str, receiver: str) -> None:
    config = f"--config.file={GENERATED / 'alertmanager-example.yaml'}"
    done = run("amtool", "config", "routes", "test", config, f"severity={severity}")
    assert done.stdout.strip() == receiver, done.stderr


@pytest.mark.prometheus
def test_amtool_takes_the_example() -> None:
    done = run("amtool", "check-config", str(GENERATED / "alertmanager-example.yaml"))
    assert done.returncode == 0, done.stdout + done.stderr


def cases_of(folder: Path, alert: str) -> Path:
    """The cases of one alert; only what it needs of the rules is evaluated, to save time."""
    rules = folder / f"{alert}.rules.yaml"
    groups = yaml.safe_load(RULES.read_text())["groups"]
    for group in groups:
        group["rules"] = [rule for rule in group["rules"] if rule.get("alert", alert) == alert]
    rules.write_text(yaml.safe_dump({"groups": groups}))
    cases = [promtool_test(case) for case in CASES if case.alert == alert]
    return document(folder / f"{alert}.test.yaml", rules, cases)


def document(path: Path, rules: Path, tests: list[dict[str, object]]) -> Path:
    content = {
        "rule_files": [str(rules)],
        "evaluation_interval": f"{EVALUATION_SECONDS}s",
        # Without it alerts may be evaluated before what they read is recorded.
        "group_eval_order": ["plimsoll.recordings", *GROUPS],
        "tests": tests,
    }
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def promtool_test(case: Case) -> dict[str, object]:
    firing = f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}'
    asserted = {f"(count({firing}) or vector(0)) > bool 0": int(case.fires)}
    if case.fires:
        pending = f'ALERTS{{alertname="{case.alert}",alertstate="pending"}}[2h]'
        asserted[f"max(count_over_time({pending})) or vector(0)"] = WAITS[case.alert]
    return {
        "name": f"{case.alert} {'fires' if case.fires else 'is silent'}: {case.why}",
        "interval": f"{SCRAPE_SECONDS}s",
        "input_series": [
            {"series": name, "values": values} for name, values in case.series.items()
        ],
        "promql_expr_test": [
            {"expr": expr, "eval_time": f"{case.at_seconds}s", "exp_samples": [{"value": value}]}
            for expr, value in asserted.items()
        ],
    }


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [tool(name), *arguments], capture_output=True, text=True, check=False, timeout=120
    )
