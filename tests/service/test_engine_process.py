"""The engine process as the front sees it: a socket, messages, an exit status."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from engine_fakes import oracle_output, spec_of

from service.config import EngineSettings
from service.config.engine import SETTINGS_VARIABLE
from service.config.engine_logs import LOGS_VARIABLE, LogSettings
from service.engine.framing import FrameSplitter, frame
from service.engine.messages import (
    Abort,
    Flush,
    Flushed,
    FromEngine,
    Heartbeat,
    IncidentReport,
    Loading,
    LookedUp,
    Lookup,
    Ready,
    Shutdown,
    StartFailed,
    StepReport,
    Submit,
    ToEngine,
)
from service.engine.pulse import Pulse, open_pulse

FAKE_ENGINE = Path(__file__).parents[1] / "fake_engine.py"
PATIENCE_SECONDS = 120


class EngineProcess:
    """A child engine with the hash model, and the front's end of its socket."""

    def __init__(
        self, settings: EngineSettings, *options: str, logs: LogSettings | None = None
    ) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        pulse_fd = open_pulse()
        self.pulse = Pulse(pulse_fd)
        with theirs:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, str(FAKE_ENGINE), "--fd", str(theirs.fileno())),
                    *("--pulse-fd", str(pulse_fd)),
                    *options,
                ],
                pass_fds=[theirs.fileno(), pulse_fd],
                stderr=subprocess.PIPE,
                cwd=FAKE_ENGINE.parents[1],
                env={
                    **os.environ,
                    "PYTHONPATH": str(FAKE_ENGINE.parents[1]),
                    SETTINGS_VARIABLE: msgspec.json.encode(settings).decode(),
                    **({} if logs is None else {LOGS_VARIABLE: msgspec.json.encode(logs).decode()}),
                },
            )
        os.close(pulse_fd)
        self.socket = ours
        self.socket.settimeout(PATIENCE_SECONDS)
        self._splitter = FrameSplitter()
        self._decoder: msgspec.msgpack.Decoder[FromEngine] = msgspec.msgpack.Decoder(FromEngine)

    def send(self, message: ToEngine) -> None:
        self.socket.sendall(frame(msgspec.msgpack.encode(message)))

    def messages(self) -> Iterator[FromEngine]:
        """Everything the engine says, until it closes its end."""
        while data := self.socket.recv(65536):
            for payload in self._splitter.feed(data):
                yield self._decoder.decode(payload)

    def answers(self) -> Iterator[FromEngine]:
        """What it says but for heartbeats, of which it sends one for every second of idleness."""
        return (message for message in self.messages() if not isinstance(message, Heartbeat))

    def until_ready(self) -> Ready:
        return next(m for m in self.messages() if isinstance(m, Ready))

    def stop(self) -> None:
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate(timeout=PATIENCE_SECONDS)


@pytest.fixture
def engine() -> Iterator[EngineProcess]:
    process = EngineProcess(EngineSettings(kv_blocks=64, max_context_tokens=512))
    yield process
    process.stop()


def test_loading_then_ready_with_the_facts_of_the_pool(engine: EngineProcess) -> None:
    messages = engine.messages()
    assert isinstance(next(messages), Loading)
    ready = next(messages)
    assert isinstance(ready, Ready)
    assert (ready.num_blocks, ready.block_tokens, ready.max_context_tokens) == (64, 16, 512)


def test_submitted_sequences_stream_to_their_ends(engine: EngineProcess) -> None:
    engine.until_ready()
    specs = [spec_of(i, prompt=range(i, i + 30), max_tokens=5) for i in range(4)]
    engine.send(Submit(specs))
    output: dict[int, list[int]] = {spec.sequence_id: [] for spec in specs}
    open_ids = set(output)
    for message in engine.messages():
        if isinstance(message, StepReport):
            for said in message.outputs:
                output[said.sequence_id] += said.token_ids
            open_ids -= {end.sequence_id for end in message.finished}
        if not open_ids:
            break
    assert output == {s.sequence_id: oracle_output(s, 256, 512) for s in specs}


def test_idle_engine_sends_heartbeats(engine: EngineProcess) -> None:
    engine.until_ready()
    heartbeat = next(engine.messages())
    assert isinstance(heartbeat, Heartbeat)
    assert heartbeat.stats.blocks_free == heartbeat.stats.blocks_total == 64


def test_calls_are_answered_with_their_ids(engine: EngineProcess) -> None:
    engine.until_ready()
    engine.send(Lookup(7, b"", list(range(40))))
    engine.send(Flush(8, None))
    engine.send(Abort([12345]))
    answers = engine.answers()
    assert next(answers) == LookedUp(7, 0)
    assert next(answers) == Flushed(8, 0, 0)


def test_shutdown_ends_with_status_0_and_nothing_on_stderr(engine: EngineProcess) -> None:
    engine.until_ready()
    engine.send(Shutdown())
    assert list(engine.answers()) == []
    _, stderr = engine.process.communicate(timeout=PATIENCE_SECONDS)
    assert (engine.process.returncode, stderr) == (0, b"")


def test_end_of_stream_ends_a_working_engine_with_status_0(engine: EngineProcess) -> None:
    engine.until_ready()
    engine.send(Submit([spec_of(1, prompt=range(10), max_tokens=500)]))
    assert isinstance(next(engine.answers()), StepReport)
    engine.socket.close()
    _, stderr = engine.process.communicate(timeout=PATIENCE_SECONDS)
    assert (engine.process.returncode, stderr) == (0, b"")


def test_signals_of_a_terminal_are_left_to_the_front(engine: EngineProcess) -> None:
    engine.until_ready()
    engine.process.send_signal(signal.SIGINT)
    engine.process.send_signal(signal.SIGTERM)
    engine.send(Lookup(1, b"", [1]))
    assert isinstance(next(engine.answers()), LookedUp)


def test_expected_start_failure_is_a_message_and_no_traceback() -> None:
    engine = EngineProcess(EngineSettings(kv_blocks=1), "--fail")
    _, failed = engine.messages()
    assert failed == StartFailed("kv_blocks = 1: told to fail")
    _, stderr = engine.process.communicate(timeout=PATIENCE_SECONDS)
    assert (engine.process.returncode, stderr) == (1, b"")
    engine.stop()


def test_crash_of_the_runner_closes_the_stream_with_a_traceback() -> None:
    engine = EngineProcess(EngineSettings(), "--crash")
    engine.until_ready()
    engine.send(Submit([spec_of(1, prompt=range(10))]))
    (last_words,) = engine.answers()
    assert isinstance(last_words, IncidentReport)
    assert last_words.incident.kind == "defect"
    assert "told to crash" in last_words.incident.cause
    assert last_words.incident.sequence_ids == [1]
    _, stderr = engine.process.communicate(timeout=PATIENCE_SECONDS)
    assert engine.process.returncode == 1
    (line,) = (json.loads(line) for line in stderr.splitlines())
    assert (line["event"], line["level"]) == ("engine crashed", "error")
    assert line["exception"].startswith("Traceback (most recent call last):\n")
    assert line["exception"].endswith("\nRuntimeError: told to crash with 10 tokens")
    engine.stop()


@pytest.mark.parametrize("logs", [None, LogSettings("warning", "json"), LogSettings("error")])
def test_a_warning_is_one_line_of_json(logs: LogSettings | None) -> None:
    settings = EngineSettings(
        kv_blocks=64, host_cache_bytes=1 << 20, remote_cache_url="redis://127.0.0.1:1/0"
    )
    engine = EngineProcess(settings, logs=logs)
    try:
        engine.until_ready()
        engine.send(Submit([spec_of(1, prompt=range(100), max_tokens=2)]))
        next(m for m in engine.messages() if isinstance(m, StepReport) and m.finished)
        stderr = engine.process.stderr
        assert stderr is not None
        # An engine that ends does not wait for what a store has to say.
        said = [] if logs == LogSettings("error") else [stderr.readline()]
        engine.send(Shutdown())
        assert engine.process.wait(PATIENCE_SECONDS) == 0
        said += stderr.readlines()
    finally:
        engine.stop()
    lines = [json.loads(line) for line in said]
    if logs == LogSettings("error"):
        assert lines == []
        return
    (line,) = lines
    assert line["event"].startswith("redis tier: fails, its blocks are misses now")
    assert (line["logger"], line["level"]) == ("kvcache.tiers", "warning")


PARENT = """
import socket, subprocess, sys, time
from service.engine.pulse import open_pulse
pulse_fd = open_pulse()
ours, theirs = socket.socketpair()
# It inherits both ends: it sees no end of stream, so only the kernel can end it.
child = subprocess.Popen(
    [sys.executable, sys.argv[1], "--fd", str(theirs.fileno()), "--pulse-fd", str(pulse_fd)],
    pass_fds=[theirs.fileno(), ours.fileno(), pulse_fd],
)
ours.recv(4)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_engine_dies_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(FAKE_ENGINE)],
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            "PYTHONPATH": str(FAKE_ENGINE.parents[1]),
            SETTINGS_VARIABLE: "{}",
        },
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()
    parent.kill()
    parent.communicate(timeout=PATIENCE_SECONDS)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while _is_alive(child):
        assert time.monotonic() < deadline, "the engine outlived its parent"
        time.sleep(0.05)


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


class TestTiers:
    """The disk tier across the ends of engines."""

    def settings(self, folder: Path) -> EngineSettings:
        return EngineSettings(
            kv_blocks=64,
            max_context_tokens=512,
            host_cache_bytes=1 << 20,
            disk_cache_folder=str(folder),
            tier_timeout_seconds=PATIENCE_SECONDS,
        )

    def cached_tokens(self, engine: EngineProcess) -> int:
        """Serves the same prompt in every engine; the part of it that was cached."""
        spec = spec_of(1, prompt=range(200), max_tokens=3)
        engine.send(Submit([spec]))
        cached, output = 0, []
        for message in engine.messages():
            if isinstance(message, StepReport):
                cached += sum(started.cached_tokens for started in message.started)
                output += [token for said in message.outputs for token in said.token_ids]
                if message.finished:
                    break
        assert output == oracle_output(spec, 256, 512)
        return cached

    def test_an_engine_finds_what_the_last_one_had_cached(self, tmp_path: Path) -> None:
        cached = []
        for _ in range(2):
            engine = EngineProcess(self.settings(tmp_path))
            try:
                engine.until_ready()
                cached.append(self.cached_tokens(engine))
                engine.send(Shutdown())
                assert engine.process.wait(timeout=PATIENCE_SECONDS) == 0
            finally:
                engine.stop()
        assert cached == [0, 192]

    def test_a_folder_that_another_engine_uses_is_an_expected_failure(self, tmp_path: Path) -> None:
        first = EngineProcess(self.settings(tmp_path))
        second = EngineProcess(self.settings(tmp_path))
        try:
            ends = []
            for engine in (first, second):
                told = (m for m in engine.messages() if isinstance(m, Ready | StartFailed))
                ends.append(next(told))
            (failure,) = (end for end in ends if isinstance(end, StartFailed))
            assert "disk tier: " in failure.message
            assert str(tmp_path) in failure.message
        finally:
            first.stop()
            second.stop()
