"""The front over the real engine: its scheduler and sampler with a fake model, and all of it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from front_fakes import AnyTokenizer, Result, call, collect, eventually
from paced_engine import Pace, paced_command

from service.config import EngineSettings, ServeSettings
from service.engine.messages import FinishReason, SamplingParams
from service.faults.plan import ExitEngine, FaultPlan
from service.front.call import GenerationCall
from service.front.front import Front
from service.front.state import FrontState

TOKENS = 60


def calls() -> list[GenerationCall]:
    """Greedy and sampled, with and without penalties, logprobs and candidates."""
    shared = list(range(40))
    made = []
    for number in range(12):
        sampling = SamplingParams(
            temperature=float(number % 3),
            seed=number,
            repetition_penalty=1.0 + number % 2,
            logprobs=1 if number % 4 == 0 else None,
        )
        made.append(
            GenerationCall(
                request_id=f"r{number}",
                prompt_ids=[*shared, number],
                sampling=sampling,
                candidate_count=1 + number % 3,
                max_tokens=TOKENS,
                want_token_ids=True,
            )
        )
    return made


async def until_decoded(front: Front, tokens: int) -> None:
    def enough() -> bool:
        engine = front.stats().engine
        return engine is not None and engine.decode_tokens >= tokens

    await eventually(enough, limit_seconds=60)


async def run(front: Front, kills: int, folder: Path) -> list[Result]:
    """All calls at once; kills the engine in between."""
    pace = Pace(folder) if kills else None  # so that none is over before the last kill
    results = [asyncio.create_task(collect(await front.generate(c))) for c in calls()]
    sequences = sum(c.candidate_count for c in calls())
    for number in range(1, kills + 1):
        await until_decoded(front, sequences * 5 * number)
        pid = front.engine_process_id
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(
            lambda pid=pid: (
                front.state is FrontState.READY  # type: ignore[misc]
                and front.engine_process_id not in (None, pid)
            )
        )
    if pace is not None:
        pace.let_go()
    return list(await asyncio.gather(*results))


async def one_front(kills: int, folder: Path) -> tuple[list[Result], Front]:
    settings = ServeSettings(
        engine=EngineSettings(model="fake", kv_blocks=200), restart_delay_seconds=0.0
    )
    front = Front(
        settings,
        engine_command=paced_command(folder),
        tokenizer=AnyTokenizer(),  # type: ignore[arg-type]
    )
    await front.start()
    try:
        await front.wait_ready()
        results = await run(front, kills, folder)
        await eventually(lambda: front.stats().engine.blocks_held == 0)  # type: ignore[union-attr]
        return results, front
    finally:
        await front.stop()


@pytest.mark.slow
async def test_an_engine_death_changes_no_token_and_no_logprob(tmp_path: Path) -> None:
    undisturbed, _ = await one_front(0, tmp_path)
    disturbed, front = await one_front(2, tmp_path)
    assert front.stats().engine_restarts == 2
    assert len({tuple(r.token_ids[0]) for r in undisturbed}) > 6, "the calls are meant to differ"
    for before, after in zip(undisturbed, disturbed, strict=True):
        assert after.token_ids == before.token_ids
        assert after.texts == before.texts
        for index, logprobs in before.logprobs.items():
            assert [lp.token_id for lp in after.logprobs[index]] == [lp.token_id for lp in logprobs]
        assert set(after.reasons.values()) == {FinishReason.MAX_TOKENS}
    assert sum(r.ended.usage.recomputed_tokens for r in disturbed if r.ended) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_real_model_goes_on_after_a_kill() -> None:
    settings = ServeSettings(
        engine=EngineSettings(
            dtype="float32", kv_dtype="float32", kv_blocks=256, threads=2, allow_faults=True
        ),
        restart_delay_seconds=0.0,
    )
    front = Front(settings)
    await front.start()
    try:
        model = await front.wait_ready()
        assert model.eos_ids
        prompt_ids = await front.encode("The three laws of robotics are")
        texts = []
        for kill in (False, True):
            if kill:  # the engine itself, at a step in the middle of the answer
                front.inject_faults(FaultPlan([ExitEngine(nth_step=12, signal=signal.SIGKILL)]))
            handle = await front.generate(
                call(prompt_ids, max_tokens=48, ignore_eos=True, want_token_ids=True)
            )
            result = await collect(handle)
            texts.append((result.text, result.token_ids[0]))
        assert texts[0] == texts[1]
        assert len(texts[0][1]) == 48
        assert front.stats().engine_restarts == 1
    finally:
        await front.stop()
