"""Through a real collector: what it passes on is what the server has sent."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_stack import long_request, read_all, stack
from otlp_receiver import OtlpReceiver, attributes, free_port, otlp_receiver

HOST = "127.0.0.2"  # where no port is given to connections of others
REQUESTS = 5
PARENT = ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")


def agent() -> Path | None:
    """The program of the collector, which its package brings along."""
    spec = importlib.util.find_spec("rotel")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).with_name("rotel-agent")


@contextlib.contextmanager
def rotel(program: Path, receiver: OtlpReceiver, log: Path) -> Iterator[str]:
    """A collector that passes on at once; the endpoint that it listens at."""
    grpc_port, http_port = free_port(HOST), free_port(HOST)
    command = [
        *(str(program), "start"),
        *("--otlp-grpc-endpoint", f"{HOST}:{grpc_port}"),
        *("--otlp-http-endpoint", f"{HOST}:{http_port}"),
        *("--exporter", "otlp", "--otlp-exporter-protocol", "grpc"),
        *("--otlp-exporter-endpoint", receiver.endpoint),
        *("--batch-timeout", "100ms"),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("ROTEL_", "OTEL_"))}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, env=environment, cwd=log.parent, stdout=out, stderr=subprocess.STDOUT
        )
    try:
        give_up = time.monotonic() + 120
        while True:
            assert process.poll() is None, f"rotel died:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < give_up, f"rotel does not listen:\n{log.read_text()[-3000:]}"
            with contextlib.suppress(OSError), socket.create_connection((HOST, grpc_port)):
                break
            time.sleep(0.05)
        yield f"http://{HOST}:{grpc_port}"
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
async def test_a_real_collector_passes_whole_traces_on(tmp_path: Path) -> None:
    program = agent()
    if program is None:
        pytest.skip("rotel is not installed: no real collector on this machine")
    with (
        otlp_receiver() as receiver,
        rotel(program, receiver, tmp_path / "rotel.log") as endpoint,
    ):
        async with stack(otlp_endpoint=endpoint, trace_ratio=1.0) as server:
            await read_all(server.stub.GenerateStream(long_request("below", 8), metadata=[PARENT]))
            for number in range(1, REQUESTS):
                await read_all(server.stub.GenerateStream(long_request(f"r{number}", 8)))
            # A server that stops drops what its collector does not take soon.
            await asyncio.to_thread(receiver.wait_for, 4 * REQUESTS)
        assert len(receiver.traces) == REQUESTS
        for trace in receiver.traces.values():
            trace.assert_whole()
            assert trace.shape == ["queue", "prefill", "decode"]
        below = receiver.trace_of("below").root
        assert below.trace_id.hex() == PARENT[1].split("-")[1]
        assert below.parent_span_id.hex() == PARENT[1].split("-")[2]
        assert attributes(below)["gen_ai.usage.output_tokens"] == 8
        assert attributes(receiver.resources[0])["service.name"] == "plimsoll"
