"""Deaths of engines under a front, and what the front has seen of it since."""

from __future__ import annotations

import os
import signal

from front_fakes import eventually

from service.front.front import Front
from service.front.handle import RequestHandle
from service.front.state import FrontState


def kill_engine(front: Front) -> int:
    pid = front.engine_process_id
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    return pid


async def until_running_again(front: Front, old_pid: int) -> None:
    await eventually(
        lambda: front.state is FrontState.READY and front.engine_process_id not in (None, old_pid)
    )


async def collect_rest(handle: RequestHandle) -> None:
    async for _ in handle:
        pass


def steps_of(front: Front) -> int:
    engine = front.stats().engine
    return 0 if engine is None else engine.steps


def decoded(front: Front) -> int:
    engine = front.stats().engine
    return 0 if engine is None else engine.decode_tokens
