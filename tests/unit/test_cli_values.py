"""Mistakes on the command line are told in one line, before a server is asked."""

from __future__ import annotations

import io
import sys

import pytest

from service.cli import main


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--seed", "18446744073709551616", "x"], "is more than 18446744073709551615"),
        (["generate", "--seed", "-1", "x"], "-1 is less than 0"),
        (["generate", "-m", "4294967296", "x"], "is more than 4294967295"),
        (["generate", "--top-k", "1.5", "x"], "'1.5' is not an integer"),
        (["generate", "--temperature", "nan", "x"], "nan is not in [0, 2]"),
        (["generate", "--repetition-penalty", "0", "x"], "0 is not in [0.01, 2]"),
        (["generate", "--time-limit", "1e300", "x"], "1e300 is not in [0, 86400]"),
        (["generate", "--tenant", "ä", "x"], "is not printable ASCII"),
        (["generate", "\udcff"], "is not valid UTF-8"),
        (["generate", "--stop", "\udcff", "x"], "is not valid UTF-8"),
        (["generate", "--system", "\udcff", "x"], "is not valid UTF-8"),
        (["chat", "--system", "\udcff"], "is not valid UTF-8"),
        (["tokenize", "\udcff"], "is not valid UTF-8"),
        (["memory", "0"], "0 is less than 1"),
        (["memory", "101%"], "101 is not in [0, 100]"),
        (["memory", "nan%"], "nan is not in [0, 100]"),
        (["memory", "5 parsecs"], "'5 parsecs' is no share (50%), no bytes (512MiB) and no number"),
        (["memory", "99999999999GiB"], "is no share (50%)"),
        (["memory", "5", "--time-limit", "1e300"], "1e300 is not in [0, 3600]"),
        (["bench", "--rate", "0"], "must be more than 0"),
        (["drill", "--max-tokens", "65537"], "65537 is more than 65536"),
        (["drill", "--recovery-limit", "0"], "0 is not in [1, 3600]"),
        (["drill", "--recovery-limit", "1e9"], "1e9 is not in [1, 3600]"),
    ],
)
def test_arguments_out_of_bounds(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [["generate", "-"], ["tokenize", "-"], ["chat"]])
def test_stdin_that_is_not_utf8(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), "utf-8"))
    assert main(command) == 1
    assert capsys.readouterr().err.startswith("plimsoll: stdin is not valid UTF-8")
