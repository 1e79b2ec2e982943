"""The command line as a user has it, against a server that has all but a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from paced_engine import Pace
from toy_server import ToyServer, toy_server

from service.cli import main

COMMAND = (sys.executable, "-m", "service.cli")
GREEDY = ("--temperature", "0", "--max-tokens", "24")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("toy")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ToyServer]:
    with toy_server(folder, "--paced-in", str(folder)) as running:
        yield running


@pytest.fixture
def slow(folder: Path) -> Iterator[None]:
    """Nothing that is to be interrupted ends before it is."""
    pace = Pace(folder)
    yield
    pace.let_go()


@pytest.fixture
def at(server: ToyServer, monkeypatch: pytest.MonkeyPatch) -> ToyServer:
    """The server that commands find by themselves."""
    monkeypatch.setenv("PLIMSOLL_SERVER", server.address)
    monkeypatch.setenv("PLIMSOLL_ADMIN_SERVER", server.admin_address)
    return server


def run(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | environment,
        check=False,
    )


@pytest.mark.usefixtures("at")
class TestGenerate:
    def test_text_goes_to_stdout_and_figures_to_stderr(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["generate", "hello", *GREEDY]) == 0
        out, err = capsys.readouterr()
        assert len(out) == 25
        assert out.endswith("\n")
        assert "24 tokens" in err
        assert "tokens/s" in err
        assert "prompt 5 tokens, 0 cached" in err
        assert "max_tokens" in err

    def test_json_has_the_same_text_and_all_figures(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        main(["generate", "hello", *GREEDY, "-q"])
        text, err = capsys.readouterr()
        assert err == ""
        assert main(["generate", "hello", *GREEDY, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        (candidate,) = answer["candidates"]
        assert candidate["text"] + "\n" == text
        assert len(candidate["token_ids"]) == 24
        assert candidate["finish_reason"] == "max_tokens"
        assert answer["usage"]["completion_tokens"] == 24
        assert answer["timings"]["time_to_first_token_seconds"] > 0

    def test_seeded_candidates_are_repeatable_and_differ(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        outputs = []
        for _ in range(2):
            assert main(["generate", "x", "-n", "2", "--seed", "7", "-t", "1", "-m", "9"]) == 0
            outputs.append(capsys.readouterr().out)
        assert outputs[0] == outputs[1]
        first, second = outputs[0].splitlines()
        assert first.removeprefix("[0]") != second.removeprefix("[1]")

    def test_a_dash_reads_stdin(self) -> None:
        direct = run("generate", "from a pipe", *GREEDY)
        piped = run("generate", "-", *GREEDY, stdin="from a pipe")
        assert piped.returncode == 0
        assert piped.stdout == direct.stdout
        empty = run("generate", "-", stdin="")
        assert (empty.returncode, empty.stdout) == (2, "")
        assert "the prompt is empty" in empty.stderr

    def test_a_refused_field_is_one_line_without_traceback(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["generate", "x", "--stop", ""]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert "options.stopping.stop[0]" in err

    def test_a_question_differs_from_a_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        main(["generate", "x", *GREEDY])
        text = capsys.readouterr()
        main(["generate", "--chat", "x", *GREEDY])
        chat = capsys.readouterr()
        main(["generate", "--system", "Be brief.", "x", *GREEDY])
        system = capsys.readouterr()
        assert len({text.out, chat.out, system.out}) == 3
        assert "prompt 7 tokens" in chat.err  # "user:x\n"
        assert "prompt 24 tokens" in system.err

    @pytest.mark.usefixtures("slow")
    def test_a_reader_that_leaves_ends_it_quietly(self, at: ToyServer) -> None:
        script = f"{sys.executable} -m service.cli generate x -t 0 -m 3000 | head -c 5"
        ended = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {script}"],
            capture_output=True,
            timeout=200,
            env=os.environ | {"PLIMSOLL_SERVER": at.address},
            check=False,
        )
        assert len(ended.stdout) == 5
        assert ended.stderr == b""
        assert ended.returncode == 1

    @pytest.mark.usefixtures("slow")
    def test_ctrl_c_ends_it_with_130_and_frees_the_request(self, at: ToyServer) -> None:
        process = subprocess.Popen(
            [*COMMAND, "generate", "x", "-t", "0", "-m", "4000"],  # no early EOS by chance
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        process.stdout.read(3)  # it streams
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=200)
        assert process.returncode == 130
        assert "Traceback" not in err
        wait_for_no_request(at)


def wait_for_no_request(server: ToyServer) -> None:
    give_up = time.monotonic() + 200
    while True:
        stats = run("stats", "--json", "--admin-server", server.admin_address)
        if json.loads(stats.stdout)["runningRequests"] == 0:
            return
        assert time.monotonic() < give_up, stats.stdout


@pytest.mark.usefixtures("at")
class TestChat:
    def test_a_piped_conversation_keeps_its_history(self) -> None:
        ended = run("chat", "-t", "0", "-m", "5", stdin="one\n\ntwo\n")
        assert ended.returncode == 0, ended.stderr
        first, second = ended.stderr.splitlines()
        assert "prompt 9 tokens" in first  # "user:one\n"
        # Question, answer of five letters with its "assistant:" and newline, question.
        assert f"prompt {9 + 16 + 9} tokens" in second
        assert len(ended.stdout.splitlines()) == 2

    def test_commands_change_the_history(self) -> None:
        lines = ["/system Hi.", "one", "/reset", "one", "/undo", "/nonsense", "one", "/exit", "x"]
        ended = run("chat", "-t", "0", "-m", "5", stdin="\n".join(lines))
        assert ended.returncode == 0, ended.stderr
        figures = ended.stderr.splitlines()
        assert len(figures) == 3
        assert all(f"prompt {len('system:Hi.') + 1 + 9} tokens" in line for line in figures)
        assert "there is no command /nonsense" in ended.stdout

    def test_a_refused_question_ends_a_script(self) -> None:
        ended = run("chat", "--stop", "", stdin="one\ntwo\n")
        assert ended.returncode == 1
        assert ended.stderr.count("\n") == 1


@pytest.mark.usefixtures("at")
class TestQuestions:
    def test_tokenize(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["tokenize", "abc"]) == 0
        out, err = capsys.readouterr()
        assert out == "97 98 99\n"
        assert "3 tokens of 4096" in err
        assert main(["tokenize", "--json", "--chat", "a"]) == 0
        assert json.loads(capsys.readouterr().out)["token_ids"] == list(b"user:a\n")

    def test_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["model"]) == 0
        out = capsys.readouterr().out
        assert "4096 tokens" in out
        assert "blocks of 16 tokens" in out
        assert main(["model", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["maxContextTokens"] == 4096

    @pytest.mark.parametrize("size", ["512", "100%", "4MiB"])
    def test_memory_within_what_was_reserved(
        self, size: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        wanted = {"512": 512, "100%": 512, "4MiB": None}[size]
        status = main(["memory", size, "--preempt", "--time-limit", "2.5"])
        out, err = capsys.readouterr()
        if wanted is None:
            assert status == 1
            assert "memory_bytes = 4194304: must be in [256, 65664] bytes" in err
        else:
            assert status == 0
            assert out.startswith("512 -> 512 blocks (0 MB), at most 512; 0 preempted")

    def test_stats(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["stats"]) == 0
        assert "of 512" in capsys.readouterr().out
        assert main(["stats", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["blocks"]["total"] == "512"


@pytest.mark.usefixtures("at")
class TestBench:
    def test_a_closed_loop_writes_table_document_and_plot(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        document, picture = tmp_path / "run.json", tmp_path / "run.png"
        arguments = ["bench", "-c", "3", "-n", "10", "--prompt-tokens", "48"]
        arguments += ["--output-tokens", "9", "--shared-prefix-tokens", "32"]
        arguments += ["--slo-ttft-ms", "60000", "--json", str(document), "--json-requests"]
        assert main([*arguments, "--plot", str(picture)]) == 0
        out = capsys.readouterr().out
        assert "10 ok" in out
        assert "goodput" in out
        assert picture.read_bytes().startswith(b"\x89PNG")
        run = json.loads(document.read_text())
        assert run["schema"] == "plimsoll.bench/1"
        assert run["load"]["concurrency"] == 3
        assert run["load"]["ignores_eos"] is True
        summary = run["summary"]
        assert summary["outcomes"]["ok"] == 10
        assert summary["output_tokens"] == 90
        assert summary["prompt_tokens"] == 480
        assert summary["goodput"]["share"] == 1.0
        # All but the requests that began before the first had ended find both shared blocks.
        assert summary["cached_prompt_tokens"] >= 7 * 32
        assert len(run["requests"]) == 10
        assert all(sum(n for _, n in r["arrivals"]) == 9 for r in run["requests"])
        assert sum(run["timeline"]["output_tokens"]) == 90

    def test_the_second_run_finds_nothing_of_the_first(self, tmp_path: Path) -> None:
        for name in ("one", "two"):
            path = tmp_path / name
            main(["bench", "-n", "2", "--output-tokens", "2", "--json", str(path)])
            assert json.loads(path.read_text())["summary"]["cached_prompt_tokens"] == 0

    def test_an_open_loop_over_a_prompt_file(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        prompts = tmp_path / "p.txt"
        prompts.write_text("one\ntwo\n")
        arguments = ["bench", "--rate", "50", "-n", "6", "--prompts", str(prompts), "--chat"]
        assert main([*arguments, "--output-tokens", "4"]) == 0
        assert "6 ok" in capsys.readouterr().out

    @pytest.mark.slow
    @pytest.mark.usefixtures("slow")
    def test_ctrl_c_shows_what_there_is(self, at: ToyServer, tmp_path: Path) -> None:
        document = tmp_path / "run.json"
        arguments = ["bench", "-c", "2", "-d", "100", "--output-tokens", "3000"]
        arguments += ["--warmup", "0"]
        process = subprocess.Popen(
            [*COMMAND, *arguments, "--json", str(document)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_for_requests(at, 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=200)
        assert process.returncode == 130, err
        assert "2 cancelled" in out
        assert "Traceback" not in err
        run = json.loads(document.read_text())
        assert run["load"]["interrupted"] is True
        assert run["summary"]["outcomes"]["cancelled"] == 2
        wait_for_no_request(at)

    @pytest.mark.parametrize(
        ("arguments", "message", "status"),
        [
            (["--rate", "4", "--concurrency", "4"], "not allowed with", 2),
            (["--prompts", "missing.txt"], "missing.txt", 1),
            (["--json", "/nowhere/run.json"], "/nowhere", 1),
            (["--json-requests"], "--json", 2),
            (["--prompt-tokens", "5000"], "the context 4096", 1),
            (["--rate", "0"], "more than 0", 2),
            (["--shared-prefix-share", "1.5"], "[0, 1]", 2),
        ],
    )
    def test_what_cannot_be_run_is_said_at_once(
        self,
        capsys: pytest.CaptureFixture[str],
        arguments: list[str],
        message: str,
        status: int,
    ) -> None:
        assert main(["bench", *arguments]) == status
        out, err = capsys.readouterr()
        assert out == ""
        assert message in err
        assert "Traceback" not in err


def wait_for_requests(server: ToyServer, count: int) -> None:
    give_up = time.monotonic() + 200
    while True:
        stats = run("stats", "--json", "--admin-server", server.admin_address)
        if json.loads(stats.stdout)["runningRequests"] == count:
            return
        assert time.monotonic() < give_up, stats.stdout


@pytest.mark.slow
def test_bench_counts_refusals_by_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "run.json"
    with toy_server(
        tmp_path, "--kv-blocks", "24", "--max-waiting-requests", "1", "--no-ignore-eos"
    ) as small:
        arguments = ["bench", "--server", small.address, "-c", "8", "-n", "12", "--warmup", "0"]
        arguments += ["--prompt-tokens", "300", "--output-tokens", "40"]
        assert main([*arguments, "--json", str(document)]) == 0
    out, err = capsys.readouterr()
    assert "--allow-ignore-eos" in err
    run = json.loads(document.read_text())
    assert run["load"]["ignores_eos"] is False
    assert run["summary"]["outcomes"]["refused"] > 0
    refusals = run["summary"]["outcomes"]["refused"]
    assert sum(run["summary"]["reasons"].values()) == refusals
    assert set(run["summary"]["reasons"]) <= {"refused: QUEUE_FULL", "refused: KV_CACHE_PRESSURE"}
    assert "refused" in out


@pytest.mark.slow
def test_a_stream_outlives_the_server(tmp_path: Path) -> None:
    """Killed as by the OOM killer, started again on its port: the text is what it would be."""
    flags = ["--temperature", "0", "--max-tokens", "1500"]
    with toy_server(tmp_path, "--paced-in", str(tmp_path)) as first:
        whole = run("generate", "sea", *flags, "--server", first.address)
        Pace(tmp_path)
        port = first.address.rpartition(":")[2]
        process = subprocess.Popen(
            [*COMMAND, "generate", "sea", *flags, "--server", first.address],
            bufsize=0,  # or communicate() would miss what read() has buffered
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        begin = process.stdout.read(20)
        first.kill()
    with toy_server(tmp_path, "--port", port):
        rest, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert (begin + rest).decode() == whole.stdout
    assert b"resumed 1 time" in err
