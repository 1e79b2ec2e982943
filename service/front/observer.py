"""Who hears what becomes of each request."""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.messages import FinishReason
from service.front.call import GenerationCall
from service.front.events import RequestError, Timings, Usage


@dataclass(frozen=True, slots=True)
class Ending:
    """How a live request ended."""

    error: RequestError | None
    completed: bool  # the client took the end; neither this nor an error: it left
    finish_reasons: list[FinishReason | None]  # of the candidates; None: the request ended first
    usage: Usage
    timings: Timings
    duration_seconds: float  # from the arrival


class RequestObserver:
    """Hears of all requests. This one does nothing; the calls come on the event loop."""

    def refused(self, call: GenerationCall, error: RequestError) -> None:
        """It was not admitted."""

    def admitted(self, call: GenerationCall) -> None:
        """It is live; `ended` follows, exactly once."""

    def scheduled(self, queue_seconds: float) -> None:
        """One is in a batch for the first time."""

    def first_token(self, since_arrival_seconds: float, since_batch_seconds: float) -> None:
        """The first token of one has come, of whichever candidate; at most once a request."""

    def received(self, call: GenerationCall, tokens: int, gap_seconds: float | None) -> None:
        """New tokens of one candidate; None: its first."""

    def resumed(self) -> None:
        """A candidate goes on in a new engine."""

    def ended(self, call: GenerationCall, ending: Ending) -> None:
        """It is not live any more."""
