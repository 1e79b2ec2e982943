"""A whole server on a CPU with a device's worth of memory: it starts, or says what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import grpc
import pytest
from live_server import serve

from service.api.gen.plimsoll.v1 import engine_admin_pb2, inference_pb2
from service.api.gen.plimsoll.v1.engine_admin_pb2_grpc import EngineAdminServiceStub
from service.api.gen.plimsoll.v1.inference_pb2_grpc import InferenceServiceStub

GIB = 1 << 30

pytestmark = pytest.mark.slow


def ledger(admin: EngineAdminServiceStub) -> engine_admin_pb2.MemoryLedger:
    give_up = time.monotonic() + 120
    while not (stats := admin.GetStats(engine_admin_pb2.GetStatsRequest(), timeout=120)).HasField(
        "memory"
    ):  # until the engine's first heartbeat
        assert time.monotonic() < give_up
        time.sleep(0.1)
    memory: engine_admin_pb2.MemoryLedger = stats.memory
    used_bytes = sum(
        (
            memory.weights_bytes,
            memory.kv_pool_bytes,
            memory.activation_bytes,
            memory.graph_bytes,
            memory.context_bytes,
            memory.other_bytes,
        )
    )
    assert memory.total_bytes == 3 * GIB
    assert used_bytes == memory.total_bytes - memory.free_bytes
    return memory


def test_a_device_of_3_gib_is_filled_as_far_as_told_and_its_ledger_balances() -> None:
    with (
        serve("--device-memory-bytes", "3GiB", "--gpu-memory-utilization", "0.8") as server,
        grpc.insecure_channel(server.admin_address) as admin_channel,
        grpc.insecure_channel(server.address) as channel,
    ):
        admin = EngineAdminServiceStub(admin_channel)
        before = ledger(admin)
        # What the largest step takes was left free for it, a block may be as well.
        reserved_bytes = before.total_bytes - before.free_bytes
        assert 0.8 * 3 * GIB - 256 * 2**20 < reserved_bytes < 0.8 * 3 * GIB
        assert before.headroom_bytes - 0.2 * 3 * GIB > 0
        request = inference_pb2.GenerateRequest(text="The sea is")
        request.options.stopping.max_tokens = 16
        InferenceServiceStub(channel).Generate(request, timeout=240)
        after = ledger(admin)
        assert (after.weights_bytes, after.kv_pool_bytes, after.context_bytes) == (
            before.weights_bytes,
            before.kv_pool_bytes,
            before.context_bytes,
        )
        assert after.reclaimable_bytes == after.activation_bytes > 0
        resident_bytes = server.engine.memory_info().rss
        claimed_bytes = after.context_bytes + after.weights_bytes
        assert resident_bytes < claimed_bytes + after.activation_bytes + 256 * 2**20


def test_a_device_that_is_too_small_is_refused_with_every_term() -> None:
    command = [sys.executable, "-m", "service.cli", "serve"]
    command += ["--port", "0", "--admin-port", "0", "--metrics-port", "0"]
    ended = subprocess.run(
        [*command, "--device-memory-bytes", "600MiB"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode != 0
    said = ended.stdout + ended.stderr
    terms = re.search(
        r"device_memory_bytes = (\d+), gpu_memory_utilization = 0\.9: the pool takes (\d+) bytes "
        r".*the weights (\d+), the largest step (\d+), the process itself (\d+): "
        r"(\d+) bytes are wanted, (\d+) may be taken\. Not even a context of one token would fit",
        said,
    )
    assert terms is not None, said
    limit, pool, weights, step, process, wanted, budget = (int(term) for term in terms.groups())
    assert limit == 600 * 2**20
    assert budget == int(0.9 * limit) < wanted
    assert pool + weights + step + process == wanted
