"""How requests ended: one log line and one count each. Never a word of prompt or output."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field

import structlog

from service.front.call import GenerationCall
from service.front.events import DeadlineUnreachable, QueueFull, RequestError
from service.front.observer import Ending, Observers
from service.front.request import LiveRequest

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Outcomes:
    """Counters since the start of the front."""

    completed: int = 0  # the client took the end
    failed: int = 0
    cancelled: int = 0  # the client left
    rejected: int = 0  # refused at once or while they waited, for want of room or time
    observers: Observers = field(default_factory=Observers)

    def reject(self, call: GenerationCall, error: RequestError) -> None:
        """A call was refused."""
        self.rejected += 1
        self.observers.refused(call, error)
        _log.info(
            "request refused",
            request_id=call.request_id,
            tenant=call.tenant,
            **_trace_ids(call),
            reason=type(error).__name__,
            prompt_tokens=len(call.prompt_ids),
        )

    def end(self, request: LiveRequest) -> None:
        """A request is not live any more."""
        if request.error is not None:
            if isinstance(request.error, (QueueFull, DeadlineUnreachable)):
                self.rejected += 1
            else:
                self.failed += 1
            outcome = type(request.error).__name__
        elif request.end_taken:
            self.completed += 1
            outcome = "completed"
        else:
            self.cancelled += 1
            outcome = "cancelled"
        call, now_seconds = request.call, time.monotonic()
        ending = Ending(
            error=request.error,
            completed=outcome == "completed",
            finish_reasons=[candidate.finish_reason for candidate in request.candidates],
            usage=request.account.usage(request.output_tokens),
            timings=request.account.timings(now_seconds),
            duration_seconds=now_seconds - request.account.arrival_seconds,
        )
        self.observers.ended(call, ending)
        _log.info(
            "request ended",
            request_id=call.request_id,
            tenant=call.tenant,
            **_trace_ids(call),
            outcome=outcome,
            finish_reasons=[reason and reason.name for reason in ending.finish_reasons],
            priority=call.priority,
            candidates=call.candidate_count,
            duration_seconds=round(ending.duration_seconds, 6),
            unsent_tokens=request.unsent_tokens,
            **asdict(ending.usage),
            **{
                name: round(value, 6) if isinstance(value, float) else value
                for name, value in asdict(ending.timings).items()
            },
        )


def _trace_ids(call: GenerationCall) -> dict[str, str]:
    """Given by hand: a request may end in another task than that of its call."""
    return {} if call.trace is None else call.trace.ids
