"""Runs a drill: references, live streams, one phase after the other."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from service.client import GenerationOptions, PlimsollClient, PlimsollError
from service.drill.course import Course, PhaseMark, ServerFacts
from service.drill.phase import LOSSES, Pace, Phase, Squeeze, Stage, Until, phases, squeeze
from service.drill.prompts import prompts
from service.drill.streams import LiveStreams
from service.drill.watch import SAMPLE_SECONDS, Watch
from service.faults.plan import FaultPlan

# Streams that have not ended so long after the last phase are cut off.
_ENDING_SECONDS = 120.0
_NO_FAULTS = FaultPlan([])

Tell = Callable[[str], None]
Inject = Callable[[FaultPlan], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Order:
    """What a drill is to be like."""

    pace: Pace
    streams: int  # live at once
    prompts: int
    max_tokens: int  # of one stream
    pool_share: float  # of the KV pool that the balloon takes, on top of what is free


class NoLedgerError(Exception):
    """The server does not say what its memory is used for."""


async def run_drill(
    client: PlimsollClient, admin: PlimsollClient, inject: Inject, order: Order, tell: Tell
) -> Course:
    """Runs all phases and answers what was seen; no fault is left when it returns or raises.

    A server that is lost on the way ends the drill early: the course says so.

    Args:
        client: for the streams; it must neither retry nor resume.
        admin: for figures.
        inject: gives the server a plan, which replaces the one before; PlimsollError where the
            server takes none.
        tell: hears of the progress.

    Raises:
        PlimsollError: before the first fault: there is no server, or it takes no faults.
        NoReferenceError, NoLedgerError, NothingToTakeError: the drill would prove nothing.
    """
    await inject(_NO_FAULTS)
    try:
        return await _Drill(client, admin, inject, order, tell).run()
    finally:
        try:
            await inject(_NO_FAULTS)
        except PlimsollError as error:
            tell(f"the faults could not be cleared: {error}")


class _Drill:
    def __init__(
        self,
        client: PlimsollClient,
        admin: PlimsollClient,
        inject: Inject,
        order: Order,
        tell: Tell,
    ) -> None:
        self._client = client
        self._inject = inject
        self._order = order
        self._tell = tell
        self._began = time.perf_counter()
        self._watch = Watch(admin, self._clock)
        self._marks: list[PhaseMark] = []
        self._pool_blocks = 0  # at the end of the baseline
        options = GenerationOptions(max_tokens=order.max_tokens, temperature=0.0)
        self._live = LiveStreams(client, prompts(order.prompts), options, self._clock)

    async def run(self) -> Course:
        facts = await self._facts()
        self._tell(f"references: {self._order.prompts} undisturbed requests")
        references = await self._live.references(self._order.streams)
        self._began = time.perf_counter()
        first = await self._watch.read()
        if first.ledger is None:
            raise NoLedgerError("the server does not tell what takes its memory")
        balloon = squeeze(first.ledger, self._order.pool_share)
        cut_short = await self._conduct(balloon)
        return Course(
            server=facts,
            phases=self._marks,
            samples=self._watch.samples,
            streams=self._live.records,
            references=references,
            balloon_bytes=balloon.balloon_bytes,
            cut_short=cut_short,
        )

    def _clock(self) -> float:
        return time.perf_counter() - self._began

    async def _facts(self) -> ServerFacts:
        model = await self._client.model()
        return ServerFacts(
            model=model.model,
            version=model.version,
            device=model.device,
            weights_dtype=model.weights_dtype,
            kv_cache_dtype=model.kv_cache_dtype,
        )

    async def _conduct(self, balloon: Squeeze) -> str:
        """All phases under live streams; answers why they were cut short, if they were."""
        work = asyncio.create_task(self._phases(phases(self._order.pace, balloon)))
        watch = asyncio.create_task(self._watch.run())
        live = asyncio.create_task(self._live.run(self._order.streams))
        try:
            await asyncio.wait({work, watch, live}, return_when=asyncio.FIRST_COMPLETED)
            for endless in (watch, live):
                if endless.done():  # then it failed
                    await endless
            await work
            if self._lost_for_good:
                return "no engine takes up the streams"
            self._live.stop()
            self._tell("the last streams end")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(live, _ENDING_SECONDS)
        except PlimsollError as error:
            return f"the server is gone: {error}"
        finally:
            for task in (work, watch, live):
                task.cancel()
            await asyncio.gather(work, watch, live, return_exceptions=True)
        return ""

    async def _phases(self, course: Sequence[Phase]) -> None:
        for phase in course:
            self._tell(f"{self._clock():6.1f} s  {phase.stage.value}")
            mark = await self._phase(phase)
            self._marks.append(mark)
            if phase.stage is Stage.BASELINE:
                self._pool_blocks = self._watch.samples[-1].pool_blocks
            if self._lost_for_good:
                return

    @property
    def _lost_for_good(self) -> bool:
        """Whether the last phase took an engine and there is none to go on with."""
        last = self._marks[-1]
        return last.stage in LOSSES and not last.is_complete

    async def _phase(self, phase: Phase) -> PhaseMark:
        begin_seconds = self._clock()
        restarts = self._watch.samples[-1].engine_restarts
        if phase.faults is not None:
            await self._inject(FaultPlan(list(phase.faults)))
        await asyncio.sleep(phase.least_seconds)
        is_over = self._condition(phase.until, restarts)
        while not (complete := is_over()):
            if self._clock() - begin_seconds > phase.most_seconds:
                break
            await asyncio.sleep(SAMPLE_SECONDS)
        return PhaseMark(phase.stage, begin_seconds, self._clock(), complete)

    def _condition(self, until: Until, restarts: int) -> Callable[[], bool]:
        if until is Until.POOL_REGROWN:
            return lambda: self._watch.samples[-1].pool_blocks >= self._pool_blocks
        if until is Until.STREAMS_GO_ON:
            return lambda: self._went_on(restarts)
        return lambda: True

    def _went_on(self, restarts: int) -> bool:
        lost = next((s for s in self._watch.samples if s.engine_restarts > restarts), None)
        return lost is not None and self._live.all_went_on_since(lost.seconds)
