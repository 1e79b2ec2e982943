"""How requests ended, in the words of vLLM."""

from __future__ import annotations

from service.engine.messages import FinishReason
from service.front import events
from service.front.call import GenerationCall
from service.front.observer import Ending, RequestObserver
from service.telemetry.catalog import vllm
from service.telemetry.exporter import Exporter

_TEXT_ENDS = (FinishReason.EOS, FinishReason.STOP)
_LEFT = (events.AbortedByAdmin, events.DeadlinePassed)


def finished_reason(ending: Ending) -> str:
    """One for the whole request: it reached a limit if any of its candidates did."""
    if ending.error is not None:
        return "abort" if isinstance(ending.error, _LEFT) else "error"
    if not ending.completed:
        return "abort"
    return "stop" if all(reason in _TEXT_ENDS for reason in ending.finish_reasons) else "length"


class VllmRequestMetrics(RequestObserver):
    """Counts the ends of requests."""

    def __init__(self, exporter: Exporter) -> None:
        (label,) = vllm.SUCCESSES.labels
        self._ends = {
            reason: exporter.counter(vllm.SUCCESSES, reason) for reason in label.values or ()
        }

    def ended(self, call: GenerationCall, ending: Ending) -> None:  # noqa: ARG002
        self._ends[finished_reason(ending)].inc()
