"""What a client is told when the device has no memory for its request."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from front_fakes import call, collect, count_prompt, counted_text, running_front
from google.rpc import error_details_pb2
from scripted_engine import EXHAUST

from service.api.errors import describe, to_status
from service.front.events import DeviceExhausted


async def test_the_front_ends_that_request_and_goes_on(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        pid = front.engine_process_id
        other = await front.generate(call(count_prompt(), "other", seed=1, max_tokens=50))
        with pytest.raises(DeviceExhausted) as caught:
            await collect(await front.generate(call([EXHAUST], "big", candidate_count=3)))
        error = caught.value
        assert (error.wanted_bytes, error.free_bytes, error.total_bytes) == (5000, 4000, 100_000)
        assert (await collect(other)).text == counted_text(1, 50)
        assert front.engine_process_id == pid
        stats = front.stats()
        assert (stats.live_requests, stats.failed_requests, stats.engine_restarts) == (0, 1, 0)
        assert len(record.submitted()) == 4


def test_a_client_is_told_the_figures_and_when_to_come_back() -> None:
    fault = describe(
        DeviceExhausted(
            wanted_bytes=5000,
            free_bytes=4000,
            total_bytes=100_000,
            tokens_sent=3,
            retry_after_seconds=2.5,
        )
    )
    assert fault is not None
    assert fault.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert fault.reason == "DEVICE_MEMORY_EXHAUSTED"
    assert fault.metadata == {
        "wanted_bytes": "5000",
        "free_bytes": "4000",
        "total_bytes": "100000",
        "tokens_sent": "3",
    }
    retry = error_details_pb2.RetryInfo()
    assert to_status(fault, "r").details[1].Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == 2500
