"""Who hears what becomes of each request. All calls come on the event loop."""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.figures import Incident
from service.engine.messages import FinishReason, Preempted, Prefilled, Readmitted
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
    """Hears of all requests. This one does nothing. `candidate` is an index in the request."""

    def refused(self, call: GenerationCall, error: RequestError) -> None:
        """It was not admitted."""

    def admitted(self, call: GenerationCall) -> None:
        """It is live; `ended` follows, exactly once."""

    def scheduled(self, call: GenerationCall, queue_seconds: float) -> None:
        """One is in a batch for the first time."""

    def first_token(
        self, call: GenerationCall, since_arrival_seconds: float, since_batch_seconds: float
    ) -> None:
        """The first token of one has come, of whichever candidate; at most once a request."""

    def received(self, call: GenerationCall, tokens: int, gap_seconds: float | None) -> None:
        """New tokens of one candidate; None: its first."""

    def prefilled(self, call: GenerationCall, candidate: int, chunk: Prefilled) -> None:
        """A chunk of its prompt, or of what it had lost, was computed."""

    def preempted(self, call: GenerationCall, candidate: int, loss: Preempted) -> None:
        """It lost blocks, and waits."""

    def readmitted(self, call: GenerationCall, candidate: int, entry: Readmitted) -> None:
        """It is in the batch again after a preemption."""

    def ran_out_of_memory(self, call: GenerationCall, incident: Incident) -> None:
        """A step that it was in found no device memory."""

    def interrupted(self, call: GenerationCall, candidate: int) -> None:
        """The engine that computed it died; `resumed` follows, or the end."""

    def resubmitted(self, call: GenerationCall, candidate: int) -> None:
        """After that, it was sent to the next engine."""

    def resumed(self, call: GenerationCall, candidate: int) -> None:
        """It goes on in a new engine."""

    def ended(self, call: GenerationCall, ending: Ending) -> None:
        """It is not live any more."""


class Observers(RequestObserver):
    """Tells several observers, in the order in which they came."""

    def __init__(self) -> None:
        self._observers: list[RequestObserver] = []

    def add(self, observer: RequestObserver) -> None:
        """Of all requests from now on."""
        self._observers.append(observer)

    def refused(self, call: GenerationCall, error: RequestError) -> None:
        for observer in self._observers:
            observer.refused(call, error)

    def admitted(self, call: GenerationCall) -> None:
        for observer in self._observers:
            observer.admitted(call)

    def scheduled(self, call: GenerationCall, queue_seconds: float) -> None:
        for observer in self._observers:
            observer.scheduled(call, queue_seconds)

    def first_token(
        self, call: GenerationCall, since_arrival_seconds: float, since_batch_seconds: float
    ) -> None:
        for observer in self._observers:
            observer.first_token(call, since_arrival_seconds, since_batch_seconds)

    def received(self, call: GenerationCall, tokens: int, gap_seconds: float | None) -> None:
        for observer in self._observers:
            observer.received(call, tokens, gap_seconds)

    def prefilled(self, call: GenerationCall, candidate: int, chunk: Prefilled) -> None:
        for observer in self._observers:
            observer.prefilled(call, candidate, chunk)

    def preempted(self, call: GenerationCall, candidate: int, loss: Preempted) -> None:
        for observer in self._observers:
            observer.preempted(call, candidate, loss)

    def readmitted(self, call: GenerationCall, candidate: int, entry: Readmitted) -> None:
        for observer in self._observers:
            observer.readmitted(call, candidate, entry)

    def ran_out_of_memory(self, call: GenerationCall, incident: Incident) -> None:
        for observer in self._observers:
            observer.ran_out_of_memory(call, incident)

    def interrupted(self, call: GenerationCall, candidate: int) -> None:
        for observer in self._observers:
            observer.interrupted(call, candidate)

    def resubmitted(self, call: GenerationCall, candidate: int) -> None:
        for observer in self._observers:
            observer.resubmitted(call, candidate)

    def resumed(self, call: GenerationCall, candidate: int) -> None:
        for observer in self._observers:
            observer.resumed(call, candidate)

    def ended(self, call: GenerationCall, ending: Ending) -> None:
        for observer in self._observers:
            observer.ended(call, ending)
