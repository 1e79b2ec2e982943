"""The script that tries the dashboards on a Grafana, with a curl that plays one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dashboards.build import FOLDER

SCRIPT = FOLDER.parent / "smoke.sh"
# $RULES: its own rules of alerts; $FORGOTTEN: the dashboard that it does not have.
CURL = r"""#!/usr/bin/env bash
url=${!#}
case $url in
  */alert-rules) echo "$RULES" ;;
  */api/dashboards/db) echo '{"status":"success"}' ;;
  */uid/"$FORGOTTEN") echo '{"dashboard":null}' ;;
  */uid/*) echo "{\"dashboard\":{\"uid\":\"${url##*/}\"}}" ;;
  *) exit 22 ;;
esac
"""


def smoke(folder: Path, rules: str = "[]", forgotten: str = "") -> subprocess.CompletedProcess[str]:
    curl = folder / "curl"
    curl.write_text(CURL)
    curl.chmod(0o755)
    environment = {
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
        "GRAFANA_URL": "http://grafana.example",
        "GRAFANA_TOKEN": "none",
        "RULES": rules,
        "FORGOTTEN": forgotten,
    }
    return subprocess.run(
        ["bash", SCRIPT], env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        ("[]", 0),
        ('[{"title":"SomebodyElses"}]', 0),
        ('[{"title":"PlimsollOutOfMemory"},{"title":"PlimsollTargetDown"}]', 2),
    ],
)
def test_all_dashboards_are_read_back_and_rules_are_counted(
    tmp_path: Path, rules: str, count: int
) -> None:
    done = smoke(tmp_path, rules)
    assert done.returncode == 0, done.stdout + done.stderr
    *boards, last = done.stdout.splitlines()
    assert len(boards) == len(list(FOLDER.glob("*.json")))
    assert all(line.startswith("ok: http://grafana.example/d/plimsoll-") for line in boards)
    assert f"evaluates: {count} (" in last


def test_a_dashboard_that_does_not_come_back_is_told(tmp_path: Path) -> None:
    done = smoke(tmp_path, forgotten="plimsoll-operator")
    assert done.returncode == 1
    assert done.stderr == "not read back: http://grafana.example/d/plimsoll-operator\n"
