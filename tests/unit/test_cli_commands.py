"""The command line without a server: finding commands, help, exit statuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from service.cli import main
from service.cli.conversation import ChatHistory
from service.cli.loading import LoadingDisplay, amount
from service.cli.remote import explain
from service.client import Message, PlimsollError, Role
from service.engine.messages import Loading

COMMANDS = (
    "serve",
    "generate",
    "chat",
    "bench",
    "replay",
    "tokenize",
    "model",
    "stats",
    "smi",
    "memory",
    "fault",
    "version",
)


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "usage: plimsoll" in err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {name} " in out for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"usage: plimsoll {name}")
    assert name == "version" or "examples:" in out
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == out


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    code = "import sys, service.cli; service.cli.main(['--help']); print(*sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ended.stdout.split())
    assert not loaded & {"grpc", "numpy", "rich", "torch", "asyncio", "msgspec"}


def test_the_client_commands_import_no_torch() -> None:
    code = (
        "import sys, service.cli.bench_run, service.cli.replay_run, service.cli.serve,"
        "service.cli.chat, service.client;"
        "print('torch' in sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "False\n"


def test_an_unknown_command_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["genrate"]) == 2
    assert "did you mean `generate`?" in capsys.readouterr().err
    assert main(["xyz"]) == 2
    assert "--help" in capsys.readouterr().err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("plimsoll 0.")


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate"],
        ["generate", "x", "--nonsense"],
        ["generate", "x", "--max-tokens", "0"],
        ["generate", "x", "--temperature", "nan"],
        ["generate", "x", "--temperature", "3"],
        ["generate", "x", "--top-k", "-1"],
        ["generate", "x", "--timeout", "0"],
        ["serve", "--port", "many"],
        ["serve", "--load-line", "2"],
    ],
    ids=" ".join,
)
def test_wrong_arguments_end_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "Traceback" not in err


def test_no_server_is_said_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "x", "--server", "127.0.0.1:1"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "no server answers at 127.0.0.1:1" in err
    assert "plimsoll serve" in err


def test_serve_reads_flags_environment_and_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLIMSOLL_SERVER", "127.0.0.1:9")  # is for the client commands
    config = tmp_path / "p.toml"
    config.write_text("port = 70000\n")
    assert main(["serve", "--config", str(config)]) == 2
    assert "port = 70000" in capsys.readouterr().err
    monkeypatch.setenv("PLIMSOLL_LOAD_LINE", "7")
    assert main(["serve"]) == 2
    assert "PLIMSOLL_LOAD_LINE" in capsys.readouterr().err


def test_a_model_that_is_not_there_ends_serve_with_1() -> None:
    command = [sys.executable, "-m", "service.cli", "serve"]
    command += ["--port", "0", "--admin-port", "0", "--metrics-port", "0"]
    ended = subprocess.run(
        [*command, "--model", "no/such/model.gguf"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 1
    assert "no/such/model.gguf" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_history_forgets_what_it_is_told_to() -> None:
    history = ChatHistory("Be brief.")
    history.ask("a")
    history.answer("b")
    history.ask("c")
    history.answer("")  # cancelled before its first word: the question is taken back
    assert history.messages == [
        Message(Role.SYSTEM, "Be brief."),
        Message(Role.USER, "a"),
        Message(Role.ASSISTANT, "b"),
    ]
    assert history.undo()
    assert history.messages == [Message(Role.SYSTEM, "Be brief.")]
    assert not history.undo()


def test_loading_is_told_once_per_stage_off_a_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with LoadingDisplay("m") as display:
        for done in range(3):
            display.update(Loading("weights", done, 2, "tensors"))
        display.update(Loading("warm-up", 0, 1, "tokens"))
        display.finish()
        display.update(Loading("weights", 0, 2, "tensors"))  # a restart
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["loading m: weights", "loading m: warm-up"]
    assert lines[2].startswith("m is ready after ")
    assert len(lines) == 3


@pytest.mark.parametrize(
    ("loading", "shown"),
    [
        (Loading("weights", 120_000_000, 270_000_000, "bytes"), "120 of 270 MB"),
        (Loading("weights", 3, 9, "tensors"), "3 of 9 tensors"),
        (Loading("warm-up", 7, 0, "tokens"), "7 tokens"),
        (Loading("import", 0, 0, "modules"), ""),
    ],
)
def test_amounts_of_loading(loading: Loading, shown: str) -> None:
    assert amount(loading) == shown


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PlimsollError("", grpc.StatusCode.UNAVAILABLE), "no server answers at h:1"),
        (PlimsollError("", grpc.StatusCode.UNAVAILABLE, "NOT_READY"), "h:1 is still loading"),
        (PlimsollError("", grpc.StatusCode.UNIMPLEMENTED), "h:1 does not answer this call"),
        (PlimsollError("why", grpc.StatusCode.UNIMPLEMENTED, "FEATURE_DISABLED"), "why"),
    ],
)
def test_what_keeps_a_command_from_its_server_is_said_in_plain_words(
    error: PlimsollError, words: str
) -> None:
    assert words in explain(error, "h:1")
