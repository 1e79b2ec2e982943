"""What the front tells observers of chunks, preemptions and returns, over a real engine."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path

import fake_engine
from front_fakes import AnyTokenizer, call, collect, eventually

from service.config import EngineSettings, ServeSettings
from service.engine.figures import PreemptionMode, PreemptionReason
from service.engine.messages import Preempted, Prefilled, Readmitted
from service.front.call import GenerationCall
from service.front.front import Front
from service.front.observer import Ending, RequestObserver

ENGINE = (sys.executable, str(Path(fake_engine.__file__)))
PROMPT_TOKENS, TOKENS = 40, 60


class Notes(RequestObserver):
    """Writes down what it hears, by request and candidate, and what comes after an end."""

    def __init__(self) -> None:
        self.live: set[str] = set()
        self.ended_ids: set[str] = set()
        self.late: list[Prefilled | Preempted | Readmitted] = []
        self.moves: dict[tuple[str, int], list[Preempted | Readmitted]] = {}
        self.prefill_tokens: Counter[tuple[str, int]] = Counter()

    def admitted(self, call: GenerationCall) -> None:
        self.live.add(call.request_id)

    def prefilled(self, call: GenerationCall, candidate: int, chunk: Prefilled) -> None:
        self._heard(call, chunk)
        self.prefill_tokens[call.request_id, candidate] += chunk.tokens

    def preempted(self, call: GenerationCall, candidate: int, loss: Preempted) -> None:
        assert isinstance(loss, Preempted)
        self._heard(call, loss)
        self.moves.setdefault((call.request_id, candidate), []).append(loss)

    def readmitted(self, call: GenerationCall, candidate: int, entry: Readmitted) -> None:
        assert isinstance(entry, Readmitted)
        self._heard(call, entry)
        self.moves.setdefault((call.request_id, candidate), []).append(entry)

    def ended(self, call: GenerationCall, ending: Ending) -> None:  # noqa: ARG002
        self.live.remove(call.request_id)
        self.ended_ids.add(call.request_id)

    def _heard(self, call: GenerationCall, what: Prefilled | Preempted | Readmitted) -> None:
        if call.request_id not in self.live:
            self.late.append(what)


async def test_all_that_happens_to_a_candidate_is_told_as_its_own_until_its_end() -> None:
    settings = ServeSettings(
        engine=EngineSettings(model="fake", kv_blocks=30, prefill_chunk_tokens=16)
    )
    front = Front(settings, engine_command=ENGINE, tokenizer=AnyTokenizer())  # type: ignore[arg-type]
    notes = Notes()
    front.observe(notes)
    await front.start()
    try:
        await front.wait_ready()
        calls = [
            call(
                [*range(number, number + PROMPT_TOKENS)],
                f"r{number}",
                candidate_count=2,
                max_tokens=TOKENS,
                priority=number % 3,
            )
            for number in range(8)
        ]
        results = [asyncio.create_task(collect(await front.generate(c))) for c in calls]
        leaver = await front.generate(call([7] * 400, "leaves", priority=3))
        await eventually(lambda: notes.prefill_tokens["leaves", 0])
        leaver.close()  # in the middle of its prefill: the engine tells of it until it hears
        ends = [result.ended for result in await asyncio.gather(*results)]
        await eventually(lambda: front.stats().engine.blocks_held == 0)  # type: ignore[union-attr]
        engine = front.stats().engine
    finally:
        await front.stop()
    assert engine is not None
    assert notes.ended_ids == {*(f"r{number}" for number in range(8)), "leaves"}
    assert notes.late == []
    # Who leaves is not told of any more, but is counted, until the engine hears of it.
    stayers = {key: moves for key, moves in notes.moves.items() if key[0] != "leaves"}
    told = Counter(
        (move.mode, move.reason)
        for moves in notes.moves.values()
        for move in moves
        if isinstance(move, Preempted)
    )
    counted = iter(engine.preemption_counts)
    unheard = sum(engine.preemption_counts) - told.total()
    assert unheard >= 0
    for kind in ((mode, reason) for mode in PreemptionMode for reason in PreemptionReason):
        assert 0 <= next(counted) - told[kind] <= unheard
    assert {index for _, index in stayers} == {0, 1}
    for moves in stayers.values():  # all of them came back, and ran to their ends
        kinds = [type(move) for move in moves]
        assert kinds == [Preempted, Readmitted] * (len(moves) // 2)
    assert engine.preemptions == sum(engine.preemption_counts) > 0
    for number, end in enumerate(ends):
        assert end is not None
        own = [notes.prefill_tokens[f"r{number}", index] for index in range(2)]
        assert min(own) > 0
        assert sum(own) >= end.usage.recomputed_tokens
        losses = sum(
            isinstance(move, Preempted)
            for index in range(2)
            for move in stayers.get((f"r{number}", index), ())
        )
        assert losses == end.timings.preemption_count
    assert notes.prefill_tokens.total() <= engine.prefill_tokens
