"""`plimsoll smi` as a user has it, against a server that has all but a model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from toy_server import ToyServer, toy_server

from service.cli import main

COMMAND = (sys.executable, "-m", "service.cli", "smi")
CLI = (sys.executable, "-m", "service.cli")
NOBODY = "127.0.0.2"  # where no port is given to connections of others


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyServer]:
    with toy_server(tmp_path_factory.mktemp("toy")) as running:
        load = ("generate", "hello", "--server", running.address, "--max-tokens", "30", "-q")
        subprocess.run([*CLI, *load], check=True, capture_output=True, timeout=200)
        yield running


def smi(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        env=os.environ | environment,
        check=False,
    )


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind((NOBODY, 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.contextmanager
def web_server(body: bytes) -> Iterator[str]:
    """Something else that speaks HTTP."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_arguments: object) -> None:
            """Silent."""

    with HTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{running.server_port}"
        finally:
            running.shutdown()
            thread.join()


def test_one_look_in_a_pipe_is_plain_text(server: ToyServer) -> None:
    ended = smi("--once", PLIMSOLL_METRICS_SERVERS=server.metrics_address)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.isascii()
    assert "\x1b" not in ended.stdout
    assert server.metrics_address in ended.stdout
    assert "NORMAL" in ended.stdout
    assert "0 running, 0 waiting" in ended.stdout


def test_servers_that_do_not_answer_are_told_and_the_others_go_on(server: ToyServer) -> None:
    nobody = f"{NOBODY}:{free_port()}"
    with web_server(b"<html>hello</html>") as other, socket.create_server(("127.0.0.1", 0)) as mute:
        silent = f"127.0.0.1:{mute.getsockname()[1]}"
        addresses = (nobody, server.metrics_address, other, silent)
        ended = smi("--once", "--json", "--timeout", "3", *addresses)
    assert ended.returncode == 0
    first, good, second, third = json.loads(ended.stdout)["servers"]
    assert first == {"address": nobody, "error": "Connection refused"}
    assert "not a page of metrics" in second["error"]
    assert third["error"] == "no answer within 3 s"
    assert good["state"] == "ready"
    assert good["load"]["recent_tokens_per_second"] > 0
    assert sum(good["kv"]["blocks"].values()) == good["kv"]["capacity_blocks"]
    assert good["load"]["recent_first_token_p50_seconds"] > 0


def test_without_any_server_it_fails_and_says_where_it_looked() -> None:
    nobody = f"{NOBODY}:{free_port()}"
    ended = smi("--once", "--json", nobody)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"plimsoll: no server answers: {nobody}: Connection refused\n"


@pytest.mark.parametrize("address", ["localhost", ":9002", "a:0", "a:65536", "::1:9002", "a b:1"])
def test_what_is_no_address_is_a_usage_error(
    address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["smi", address, "--once"]) == 2
    assert repr(address) in capsys.readouterr().err
    monkeypatch.setenv("PLIMSOLL_METRICS_SERVERS", f"b:1,{address}")
    assert main(["smi", "--once"]) == 2
    assert f"PLIMSOLL_METRICS_SERVERS: {address!r}" in capsys.readouterr().err


def test_look_after_look_until_ctrl_c(server: ToyServer) -> None:
    command = [*COMMAND, server.metrics_address, "--json", "--interval", "0.2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(3)]
        process.send_signal(signal.SIGINT)
        assert process.wait(200) == 0
    first, *later = (look["servers"][0] for look in looks)
    assert first["counts"]["preemptions"]["since_last_look"] is None
    assert [each["counts"]["preemptions"]["since_last_look"] for each in later] == [0, 0]
    assert all(each["load"]["window_seconds"] < first["load"]["window_seconds"] for each in later)
    assert all(each["load"]["recent_token_gap_p50_seconds"] is None for each in later)
