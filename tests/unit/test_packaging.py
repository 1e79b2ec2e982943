"""What a user installs: locked dependencies, and a wheel with all that it needs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def locked() -> dict[str, str]:
    """The lines of each requirement of the lock, by name."""
    text = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"^(?=[a-z0-9])", text, flags=re.MULTILINE)[1:]
    return {re.split(r"[=\[ ]", entry, maxsplit=1)[0]: entry for entry in entries}


def declared() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [line for lines in project["optional-dependencies"].values() for line in lines]
    names = {re.match(r"[\w-]+", line)[0] for line in [*project["dependencies"], *extras]}  # type: ignore[index]
    return names - {project["name"]}


def test_every_dependency_is_locked_by_hash_and_without_an_index_address() -> None:
    entries = locked()
    assert declared() <= set(entries)
    assert len(entries) > len(declared())
    for name, entry in entries.items():
        assert re.match(rf"{re.escape(name)}==\S+", entry), name
        assert "--hash=sha256:" in entry, name
    assert "index-url" not in (ROOT / "requirements.lock").read_text()
    assert "://" not in (ROOT / "requirements.lock").read_text()


def build(source: Path, kind: str, folder: Path) -> Path:
    """Builds a `wheel` or `sdist` as a front end would, without isolation: no index is asked."""
    command = f"from setuptools import build_meta; build_meta.build_{kind}({str(folder)!r})"
    subprocess.run([sys.executable, "-c", command], cwd=source, check=True, capture_output=True)
    (path,) = folder.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Names in a wheel that is built from an sdist, so that the sdist is complete too."""
    folder = tmp_path_factory.mktemp("dist")
    for name in ("kvcache", "service"):
        shutil.copytree(
            ROOT / name,
            folder / "tree" / name,
            ignore=shutil.ignore_patterns("*.so", "__pycache__"),
        )
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "tree")
    for kind in ("sdist", "wheel"):
        (folder / kind).mkdir()
    with tarfile.open(build(folder / "tree", "sdist", folder / "sdist")) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    path = build(unpacked, "wheel", folder / "wheel")
    return set(zipfile.ZipFile(path).namelist())


@pytest.mark.slow
@pytest.mark.parametrize(
    "file",
    [
        "kvcache/py.typed",
        "service/py.typed",
        "service/api/proto/plimsoll/v1/inference.proto",
        "service/api/gen/plimsoll/v1/inference_pb2.py",
        "service/api/gen/plimsoll/v1/inference_pb2.pyi",
        "kvcache/_native.abi3.so",
    ],
)
def test_the_wheel_has(wheel: set[str], file: str) -> None:
    assert file in wheel


@pytest.mark.slow
def test_the_wheel_has_nothing_but_the_two_packages(wheel: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel if ".dist-info/" not in name}
    assert tops == {"kvcache", "service"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel)
