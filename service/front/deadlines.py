"""Whether a request can make its deadline, judged from what the engine has shown it can do."""

from __future__ import annotations

from service.config import ServeSettings
from service.engine.figures import EngineStats
from service.engine.messages import FinishReason
from service.front.call import GenerationCall
from service.front.forecast import Demand, Load, forecast
from service.front.habits import Habits
from service.front.request import LiveRequest
from service.front.step_costs import StepCosts

_UNKNOWN_OUTPUT_TOKENS = 1  # nobody is refused for output that nobody has seen
_FULL_SHARE = 0.5  # of held blocks from which on blocks may be what admission waits for
_OWN_ENDS = (
    FinishReason.EOS,
    FinishReason.STOP,
    FinishReason.MAX_TOKENS,
    FinishReason.CONTEXT_LENGTH,
)


class Deadlines:
    """Learns from the engine's reports and from ended requests; forecasts new ones.

    Wherever it knows nothing it assumes nothing, and an idle engine takes everybody: so too
    dark a picture does not last.
    """

    def __init__(self, settings: ServeSettings) -> None:
        engine = settings.engine
        self._chunk_tokens = engine.prefill_chunk_tokens
        self._max_sequences = max(1, min(engine.max_running_sequences, engine.max_step_tokens - 1))
        self._costs = StepCosts()
        self._latest: EngineStats | None = None
        self._habits = Habits()

    def engine_reported(self, stats: EngineStats) -> None:
        """`stats` are of all engines so far, and new since the last call."""
        before, self._latest = self._latest, stats
        if before is None or not before.running + before.waiting:
            return  # time has passed in which there was nothing to do
        steps = stats.steps - before.steps
        seconds = stats.last_step_seconds - before.last_step_seconds
        if steps > 0 and seconds > 0:
            self._costs.note(
                (stats.decode_tokens - before.decode_tokens) / steps,
                (stats.prefill_tokens - before.prefill_tokens) / steps,
                seconds / steps,
            )

    def engine_lost(self) -> None:
        """The time until the next report says nothing of the speed."""
        self._latest = None

    def note_start(self, request: LiveRequest, now_seconds: float) -> None:
        """A request entered the batch."""
        account = request.account
        self._habits.note_start(
            request.call.tenant, account.prompt_tokens, account.cached_prompt_tokens, now_seconds
        )

    def note_end(self, request: LiveRequest, now_seconds: float) -> None:
        """A request is over; what it said tells what its tenant's next ones will say."""
        if not request.scheduled:
            return
        for candidate in request.candidates:
            self._habits.note_end(
                request.call.tenant,
                candidate.output_tokens,
                now_seconds,
                was_cut=candidate.finish_reason not in _OWN_ENDS,
            )

    @property
    def slots(self) -> int:
        """Sequences that the engine can run at once, as far as it has shown."""
        stats = self._latest
        if stats is not None and stats.waiting and stats.held_share >= _FULL_SHARE:
            return max(1, min(self._max_sequences, stats.running))
        return self._max_sequences

    def demand(self, call: GenerationCall, max_tokens: int, now_seconds: float) -> Demand:
        """What a call is expected to take; `max_tokens` is what its context leaves."""
        output_tokens = self._habits.output_tokens(call.tenant, now_seconds)
        if output_tokens is None:
            output_tokens = _UNKNOWN_OUTPUT_TOKENS
        if call.ignore_eos and not call.stop and not call.stop_ids:
            output_tokens = max_tokens
        return Demand(
            sequences=call.candidate_count,
            prompt_tokens=(
                len(call.prompt_ids) * self._habits.computed_share(call.tenant, now_seconds)
            ),
            output_tokens=min(max_tokens, max(call.min_tokens, 1, output_tokens)),
        )

    def seconds(self, demand: Demand, load: Load, now_seconds: float) -> float:
        """Time until the end of a request that joins `load`; 0 when nobody knows."""
        costs = self._costs.costs
        if costs is None or load.is_idle:
            return 0.0
        turnover = self._habits.turnover(now_seconds)
        return forecast(costs, turnover, load, demand, self._chunk_tokens).seconds
