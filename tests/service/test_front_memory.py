"""The front and the size of the pool: asking for it, and keeping it over an engine's death."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from front_fakes import Record, call, collect, count_prompt, running_front, say
from scripted_engine import POOL_BLOCKS

from service.engine.messages import ShrinkPolicy
from service.front.events import NotReady
from service.front.state import MemoryChange


async def test_the_answer_of_the_engine_is_handed_on(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, _):
        assert front.stats().max_blocks == 2 * POOL_BLOCKS
        change = await front.set_memory(500, policy=ShrinkPolicy.WAIT, limit_seconds=5)
    assert change == MemoryChange(POOL_BLOCKS, 500, preempted=0, elapsed_seconds=0.0)


def _kinds(record: Record) -> list[tuple[str, int]]:
    lines = [json.loads(line) for line in record.path.read_text().splitlines()]
    return [(line["type"], line.get("blocks", 0)) for line in lines]


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
    kinds = _kinds(record)
    second = kinds[kinds.index(("Start", 0), 1) :]
    assert second[:2] == [("Start", 0), ("Resize", 500)]
    assert second[2][0] == "Submit"


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
    resizes = [blocks for kind, blocks in _kinds(record) if kind == "Resize"]
    assert resizes == [500, 500]


async def test_an_engine_of_the_right_size_is_left_alone(tmp_path: Path) -> None:
    async with running_front(tmp_path) as (front, record):
        await collect(await front.generate(call(say("a"))))
    assert not record.lines("Resize")


async def test_without_an_engine_it_is_not_ready(tmp_path: Path) -> None:
    async with running_front(tmp_path, "--hang-at-start", ready=False) as (front, _):
        with pytest.raises(NotReady):
            await front.set_memory(500, policy=ShrinkPolicy.WAIT, limit_seconds=5)
