"""A loop that was held up says so."""

from __future__ import annotations

import asyncio
import time

import pytest
from metrics_page import page_of

from service.telemetry import loop_lag
from service.telemetry.catalog import server
from service.telemetry.exporter import Exporter

HELD_UP_SECONDS = 0.3


async def test_by_how_much_the_loop_was_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_lag, "_INTERVAL_SECONDS", 0.01)
    exporter = Exporter("m")
    running = asyncio.create_task(loop_lag.LoopLag(exporter).run())
    await asyncio.sleep(0)  # it waits now
    time.sleep(HELD_UP_SECONDS)  # noqa: ASYNC251  # that is the point
    while not page_of(exporter).value(server.LOOP_LAG, "_count"):  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    running.cancel()
    page = page_of(exporter)
    assert page.value(server.LOOP_LAG, "_sum") >= HELD_UP_SECONDS - 0.01
    assert page.value(server.LOOP_LAG, "_bucket", le="0.25") < page.value(
        server.LOOP_LAG, "_bucket", le="+Inf"
    )
