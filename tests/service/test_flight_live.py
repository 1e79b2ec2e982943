"""Flight records of the real server, and the one sentence that says why it ended."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from live_server import LiveServer, serve

from service.api.gen.plimsoll.v1 import engine_admin_pb2, engine_admin_pb2_grpc
from service.api.gen.plimsoll.v1.inference_pb2 import GenerateStreamRequest
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STREAMS = 4
TOKENS = 120  # none is done before the kill


def plimsoll(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == status, done.stderr
    return done


def listed(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        plimsoll("flight", "list", "--json", "--folder", str(folder)).stdout
    )
    return rows


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "flight"


@pytest.fixture
def server(folder: Path) -> Iterator[LiveServer]:
    with serve("--kv-blocks", "200", "--flight-folder", str(folder)) as live:
        yield live


async def test_a_killed_engine_leaves_a_record(server: LiveServer, folder: Path) -> None:
    async with (
        grpc.aio.insecure_channel(server.address) as channel,
        grpc.aio.insecure_channel(server.admin_address) as admin_channel,
    ):
        stub = InferenceServiceStub(channel)
        streams = []
        for number in range(STREAMS):
            request = GenerateStreamRequest(request_id=f"stream-{number}", text="The sea is")
            request.options.stopping.max_tokens = TOKENS
            request.options.stopping.min_tokens = TOKENS
            streams.append(stub.GenerateStream(request, timeout=150))
        for stream in streams:
            assert (await stream.read()).HasField("start")
            assert (await stream.read()).HasField("deltas")
        killed = server.engine
        killed.kill()
        await asyncio.to_thread(server.wait_for_new_engine, killed.pid)
        for stream in streams:  # nobody noticed
            while not (message := await stream.read()).HasField("end"):
                assert message.HasField("deltas")
        admin = engine_admin_pb2_grpc.EngineAdminServiceStub(admin_channel)
        stats = await admin.GetStats(engine_admin_pb2.GetStatsRequest(), timeout=30)
    (row,) = listed(folder)
    assert (row["kind"], row["engine_life"]) == ("engine-death", 1)
    assert row["cause"].endswith("killed by SIGKILL")
    assert stats.flight.records == 1
    assert stats.flight.last_cause == row["cause"]
    record = json.loads(plimsoll("flight", "show", "--json", "--folder", str(folder)).stdout)
    assert record["engine"]["process_id"] == killed.pid
    assert {request["request_id"] for request in record["requests"]} == {
        f"stream-{number}" for number in range(STREAMS)
    }
    assert all(request["output_tokens"] > 0 for request in record["requests"])
    memory = record["memory"]
    used_bytes = memory["total_bytes"] - memory["free_bytes"]
    assert sum(memory["by_owner"].values()) == used_bytes
    assert memory["by_owner"]["kv_pool"] > 0
    assert record["signals"]["engine"]["running"][-1] == STREAMS  # the last word it said
    assert len(record["signals"]["vitals"]["headroom_bytes"]) == len(record["signals"]["seconds"])
    shown = plimsoll("flight", "show", row["file"], "--folder", str(folder)).stdout
    assert "killed by SIGKILL" in shown
    assert "kv pool" in shown
    assert "stream-0" in shown


@pytest.mark.parametrize(
    ("flags", "records"),
    [
        (("--kv-blocks", "1", "--max-context-tokens", "64"), 2),  # the engine refuses
        (("--model", "/nonexistent/model.gguf"), 0),  # the tokenizer is not there either
    ],
    ids=["engine", "model"],
)
def test_why_a_server_ended_is_one_sentence_everywhere(
    tmp_path: Path, folder: Path, flags: tuple[str, ...], records: int
) -> None:
    termination_log = tmp_path / "termination-log"
    termination_log.write_text("of the container before")
    ended = plimsoll(
        *("serve", "--port", "0", "--admin-port", "0", "--metrics-port", "0"),
        *("--log-format", "json"),
        *("--flight-folder", str(folder), "--termination-log", str(termination_log)),
        *flags,
        status=1,
    )
    cause = termination_log.read_text()
    assert cause
    assert "of the container before" not in cause
    assert ended.stderr.splitlines()[-1] == f"plimsoll: {cause}"
    rows = listed(folder)
    if records:
        assert rows[0]["kind"] == "given-up"
        assert rows[0]["cause"] == cause
        lines = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
        (told,) = [line for line in lines if line["event"] == "engine cannot start"]
        assert told["cause"] == cause
