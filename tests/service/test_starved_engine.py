"""The watchdog and the scheduler of Linux: starved is not frozen, whatever the clock says."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from cpu_burners import burning

from service.engine.pulse import Pulse, open_pulse
from service.front.watchdog import Watchdog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_SECONDS = 0.5
# Stands back behind everybody on one CPU; beats after so much work, or never.
WORKER = """
import os, sys, time
from service.engine.pulse import Pulse
pulse, work_seconds = Pulse(int(sys.argv[1])), float(sys.argv[2])
os.sched_setaffinity(0, {int(sys.argv[3])})
os.nice(19)
pulse.beat()
while True:
    end_seconds = time.process_time() + work_seconds
    while time.process_time() < end_seconds:
        pass
    pulse.beat()
"""


@contextlib.contextmanager
def working(work_seconds: float, cpu: int) -> Iterator[tuple[Pulse, int]]:
    fd = open_pulse()
    command = [sys.executable, "-c", WORKER, str(fd), str(work_seconds), str(cpu)]
    worker = subprocess.Popen(command, pass_fds=[fd])
    pulse = Pulse(fd)
    os.close(fd)
    try:
        yield pulse, worker.pid
    finally:
        worker.kill()
        worker.wait()


async def until_beat(pulse: Pulse, beats: int) -> float:
    """Waits for so many beats; the longest time between two looks that saw one."""
    seen, longest_seconds, since_seconds = pulse.beats, 0.0, time.monotonic()
    while pulse.beats < beats:
        await asyncio.sleep(0.01)
        if pulse.beats != seen:
            now_seconds = time.monotonic()
            longest_seconds = max(longest_seconds, now_seconds - since_seconds)
            seen, since_seconds = pulse.beats, now_seconds
    return longest_seconds


async def test_an_engine_that_hardly_gets_a_cpu_is_no_frozen_one() -> None:
    cpu = min(os.sched_getaffinity(0))
    frozen: list[bool] = []
    with working(0.005, cpu) as (pulse, process_id):
        await until_beat(pulse, 1)
        with burning(3, {cpu}):
            dog = Watchdog()
            dog.start(pulse, process_id, LIMIT_SECONDS, lambda: frozen.append(True))
            while not frozen and await until_beat(pulse, pulse.beats + 2) < 2 * LIMIT_SECONDS:
                pass
            dog.stop()
    assert not frozen


async def test_one_that_computes_for_ever_is() -> None:
    cpu = min(os.sched_getaffinity(0))
    frozen = asyncio.Event()
    with working(3600.0, cpu) as (pulse, process_id):
        await until_beat(pulse, 1)
        dog = Watchdog()
        dog.start(pulse, process_id, LIMIT_SECONDS, frozen.set)
        await frozen.wait()
        dog.stop()
        assert pulse.beats == 1
