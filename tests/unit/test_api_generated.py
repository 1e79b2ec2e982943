"""The committed gRPC code is what the .proto files say, and those keep the rules of buf."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvcache.pressure import PressureLevel
from service.api.gen.plimsoll.v1 import common_pb2, engine_admin_pb2
from service.api.generate import GENERATED_FOLDER, PROTO_FOLDER, generate, rewrite_imports
from service.engine.messages import FinishReason, ShrinkPolicy

BUF = Path(sys.executable).parent / "buf"


def texts(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*.py*")
        if path.suffix in (".py", ".pyi")
    }


def test_regenerating_changes_nothing(tmp_path: Path) -> None:
    generate(tmp_path / "gen")
    fresh, committed = texts(tmp_path / "gen"), texts(GENERATED_FOLDER)
    assert sorted(fresh) == sorted(committed)
    assert len(fresh) > 10
    for name, text in fresh.items():
        assert text == committed[name], f"{name} differs: run python -m service.api.generate"


def test_generating_replaces_what_was_there(tmp_path: Path) -> None:
    stale = tmp_path / "gen" / "plimsoll" / "v1" / "gone_pb2.py"
    stale.parent.mkdir(parents=True)
    stale.touch()
    generate(tmp_path / "gen")
    assert not stale.exists()


def test_only_imports_of_generated_modules_are_rewritten() -> None:
    source = "from plimsoll.v1 import a_pb2\nimport plimsoll.v1.b\nname = 'plimsoll.v1.C'\n"
    assert rewrite_imports(source) == (
        "from service.api.gen.plimsoll.v1 import a_pb2\n"
        "import service.api.gen.plimsoll.v1.b\n"
        "name = 'plimsoll.v1.C'\n"
    )


@pytest.mark.parametrize("arguments", [["lint"], ["format", "--diff", "--exit-code"]])
def test_buf_finds_nothing(arguments: list[str]) -> None:
    if not BUF.exists():
        pytest.skip("buf-bin is not installed next to this interpreter")
    done = subprocess.run(
        [BUF, *arguments], cwd=PROTO_FOLDER, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_enums_have_the_numbers_of_the_internal_ones() -> None:
    finish = {f"FINISH_REASON_{reason.name}": reason.value for reason in FinishReason}
    assert dict(common_pb2.FinishReason.items()) == {"FINISH_REASON_UNSPECIFIED": 0, **finish}
    shrink = {f"SHRINK_POLICY_{policy.name}": policy.value for policy in ShrinkPolicy}
    assert dict(engine_admin_pb2.ShrinkPolicy.items()) == {"SHRINK_POLICY_UNSPECIFIED": 0, **shrink}
    pressure = {f"PRESSURE_LEVEL_{level.name}": level.value for level in PressureLevel}
    assert dict(engine_admin_pb2.PressureLevel.items()) == {
        "PRESSURE_LEVEL_UNSPECIFIED": 0,
        **pressure,
    }
