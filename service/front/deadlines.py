"""Whether a request can make its deadline, judged from what the engine has shown it can do."""

from __future__ import annotations

from service.config import ServeSettings
from service.engine.figures import EngineStats
from service.engine.messages import FinishReason
from service.front.calibration import Calibration
from service.front.call import GenerationCall
from service.front.forecast import Demand, Load, forecast
from service.front.habits import Habits
from service.front.request import LiveRequest
from service.front.step_costs import StepCosts

# The least that a request would have taken that was cut at its deadline, as a multiple of its
# time until then.
_CUT_RATIO = 1.25
_LATE_SHARE = 0.9  # of the time to the deadline: who goes after that without an end was late
_FULL_SHARE = 0.5  # of held blocks from which on blocks may be what admission waits for
_OWN_ENDS = (
    FinishReason.EOS,
    FinishReason.STOP,
    FinishReason.MAX_TOKENS,
    FinishReason.CONTEXT_LENGTH,
)


class Deadlines:
    """Learns from the engine's reports and from ended requests; forecasts new ones.

    Wherever it knows nothing it assumes nothing, and what it knows fades or is proved wrong by
    the next request.
    """

    def __init__(self, settings: ServeSettings) -> None:
        engine = settings.engine
        self._chunk_tokens = engine.prefill_chunk_tokens
        self._max_sequences = max(1, min(engine.max_running_sequences, engine.max_step_tokens - 1))
        self._costs = StepCosts()
        self._calibration = Calibration()
        self._latest: EngineStats | None = None
        self._habits = Habits()

    def engine_reported(self, stats: EngineStats) -> None:
        """`stats` are of all engines so far, and new since the last call."""
        before, self._latest = self._latest, stats
        if before is None:
            return
        steps = stats.steps - before.steps
        seconds = stats.busy_seconds - before.busy_seconds
        if steps > 0 and seconds > 0:
            self._costs.note(
                (stats.decode_tokens - before.decode_tokens) / steps,
                (stats.prefill_tokens - before.prefill_tokens) / steps,
                seconds / steps,
            )

    def note_start(self, request: LiveRequest, now_seconds: float) -> None:
        """A request entered the batch."""
        account = request.account
        self._habits.note_start(
            request.call.tenant, account.prompt_tokens, account.cached_prompt_tokens, now_seconds
        )

    def note_end(self, request: LiveRequest, now_seconds: float) -> None:
        """A request is over: what it said and how long it took tells of the next ones."""
        if not request.scheduled:
            return
        is_whole = True
        for candidate in request.candidates:
            ended_itself = candidate.finish_reason in _OWN_ENDS
            is_whole &= ended_itself
            self._habits.note_end(
                request.call.tenant,
                candidate.output_tokens,
                now_seconds,
                was_cut=not ended_itself,
            )
        account = request.account
        if not request.forecast_seconds:
            return
        if is_whole and account.last_token_seconds is not None:
            seconds = account.last_token_seconds - account.arrival_seconds
            self._calibration.note(seconds / request.forecast_seconds)
        elif (deadline_seconds := request.call.deadline_seconds) is not None:
            seconds = now_seconds - account.arrival_seconds
            # The client's clock ends a call a moment before ours does.
            if seconds > _LATE_SHARE * (deadline_seconds - account.arrival_seconds):
                self._calibration.note(_CUT_RATIO * seconds / request.forecast_seconds)

    @property
    def slots(self) -> int:
        """Sequences that the engine can run at once, as far as it has shown."""
        stats = self._latest
        if stats is not None and stats.waiting and stats.held_share >= _FULL_SHARE:
            return max(1, min(self._max_sequences, stats.running))
        return self._max_sequences

    def demand(self, call: GenerationCall, max_tokens: int, now_seconds: float) -> Demand:
        """What a call is expected to take; `max_tokens` is what its context leaves."""
        output_tokens = self._habits.output_tokens(call.tenant, now_seconds) or 0.0
        if call.ignore_eos and not call.stop and not call.stop_ids:
            output_tokens = max_tokens
        share = self._habits.computed_share(call.tenant, now_seconds)
        return Demand(
            sequences=call.candidate_count,
            prompt_tokens=len(call.prompt_ids) * share,
            output_tokens=min(max_tokens, max(call.min_tokens, output_tokens)),
        )

    @property
    def caution(self) -> float:
        """Factor by which forecasts have turned out too short."""
        return self._calibration.factor

    def seconds(self, demand: Demand, load: Load, now_seconds: float) -> float:
        """Time until the end of a request that joins `load`, before all caution.

        0 when nobody knows: nobody is refused for output that nobody has seen.
        """
        costs = self._costs.costs
        if costs is None or not demand.output_tokens:
            return 0.0
        turnover = self._habits.turnover(now_seconds)
        return forecast(costs, turnover, load, demand, self._chunk_tokens).seconds
