"""The drill against the real server with a real model: it must pass, and say why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from live_server import serve

from service.cli import main
from service.drill.sample import RUNGS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FLAGS = ("--dtype", "float32", "--device-memory-bytes", "1600MiB", "--max-step-tokens", "256")


def test_the_server_passes_the_drill(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "drill.json"
    with serve("--allow-faults", "--flight-folder", str(tmp_path / "flight"), *FLAGS) as live:
        status = main(
            [
                *("drill", "--quick", "--streams", "6", "--prompts", "8", "--max-tokens", "64"),
                *("--recovery-limit", "100"),
                *("--server", live.address, "--admin-server", live.admin_address),
                *("--json", str(document)),
            ]
        )
    out, err = capsys.readouterr()
    assert status == 0, out + err
    drill = json.loads(document.read_text())
    assert drill["server"]["weights_dtype"] == "float32"
    found = drill["findings"]
    assert found["streams"]["damage"] == {"lost": 0, "repeated": 0, "differing": 0}
    assert found["rungs"].keys() == set(RUNGS)
    # The six allocations that fail in a row go through all rungs but the last.
    assert found["rungs"]["retry"] >= 3
    assert found["rungs"]["shrink"] >= 2
    assert found["rungs"]["requeue"] >= 1
    assert found["rungs"]["fail"] == 0
    assert len(found["losses"]) == 2
