"""The front and the size of the pool: asking for it, and keeping it over an engine's death."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from engine_deaths import kill_engine, until_running_again
from front_fakes import call, collect, count_prompt, running_front, say
from scripted_engine import MAX_CONTEXT_TOKENS, POOL_BLOCKS

from service.engine.messages import ShrinkPolicy
from service.front.events import NotReady
from service.front.state import MemoryChange


async def test_the_answer_of_the_engine_is_handed_on(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        assert front.stats().max_blocks == 2 * POOL_BLOCKS
        change = await front.set_memory(500, policy=ShrinkPolicy.WAIT, limit_seconds=5)
    assert change == MemoryChange(POOL_BLOCKS, 500, preempted=0, elapsed_seconds=0.0)


async def test_a_new_engine_gets_the_size_that_was_in_force_before_any_request(
    tmp_path: Path,
) -> None:
    """Else the memory that was given away would be taken again."""
    async with running_front(tmp_path) as (front, record):
        await front.set_memory(500, policy=ShrinkPolicy.PREEMPT, limit_seconds=5)
        request = await front.generate(call(count_prompt(), max_tokens=300))
        assert front.engine_process_id is not None
        os.kill(front.engine_process_id, signal.SIGKILL)
        await collect(request)
    first, second = (line["predecessor"] for line in record.lines("Start"))
    assert first is None
    assert second["blocks"] == 500
    assert len(record.lines("Resize")) == 1, "it begins with that size"


async def test_a_new_engine_gets_what_was_ordered_where_memory_held_the_pool_back(
    tmp_path: Path,
) -> None:
    """Else the pool would stay as small as it was in that moment, for good."""
    async with running_front(tmp_path, "--held-blocks", "40") as (front, record):
        change = await front.set_memory(500, policy=ShrinkPolicy.PREEMPT, limit_seconds=5)
        assert change.num_blocks == 40
        request = await front.generate(call(count_prompt(), max_tokens=300))
        assert front.engine_process_id is not None
        os.kill(front.engine_process_id, signal.SIGKILL)
        await collect(request)
    assert record.lines("Start")[1]["predecessor"]["blocks"] == 500


async def test_a_new_engine_takes_over_the_sizes_of_the_first(tmp_path: Path) -> None:
    """However little memory is left when it starts."""
    async with running_front(tmp_path) as (front, record):
        for _ in range(2):
            await until_running_again(front, kill_engine(front))
        await collect(await front.generate(call(say("a"))))
    first, *later = (line["predecessor"] for line in record.lines("Start"))
    assert first is None
    sizes = {"blocks": POOL_BLOCKS, "max_blocks": 2 * POOL_BLOCKS}
    assert later == [{**sizes, "context_tokens": MAX_CONTEXT_TOKENS}] * 2
    assert not record.lines("Resize")


async def test_without_an_engine_it_is_not_ready(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--hang-at-start", ready=False) as (front, _):
        with pytest.raises(NotReady):
            await front.set_memory(500, policy=ShrinkPolicy.WAIT, limit_seconds=5)
