"""How requests ended, under vLLM's name."""

from __future__ import annotations

import pytest
from metrics_page import page_of

from service.engine.messages import FinishReason, SamplingParams
from service.front.call import GenerationCall
from service.front.events import (
    AbortedByAdmin,
    DeadlinePassed,
    EngineLost,
    RequestError,
    Timings,
    Usage,
)
from service.front.observer import Ending
from service.telemetry.catalog import vllm
from service.telemetry.exporter import Exporter
from service.telemetry.vllm_requests import VllmRequestMetrics

CALL = GenerationCall(request_id="r", prompt_ids=[1], sampling=SamplingParams())
REASONS = ("stop", "length", "abort", "error")


def ending(
    *reasons: FinishReason, error: RequestError | None = None, completed: bool = True
) -> Ending:
    timings = Timings(0, 0, 0, 0, 0, 0, 0)
    return Ending(error, completed and not error, [*reasons], Usage(1, 1, 0, 0), timings, 0.1)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (ending(FinishReason.EOS), "stop"),
        (ending(FinishReason.EOS, FinishReason.STOP), "stop"),
        (ending(FinishReason.MAX_TOKENS), "length"),
        (ending(FinishReason.CONTEXT_LENGTH), "length"),
        (ending(FinishReason.TIME_LIMIT), "length"),
        (ending(FinishReason.EOS, FinishReason.MAX_TOKENS), "length"),
        (ending(FinishReason.EOS, completed=False), "abort"),
        (ending(error=AbortedByAdmin("why")), "abort"),
        (ending(error=DeadlinePassed()), "abort"),
        (ending(error=EngineLost(tokens_sent=3)), "error"),
    ],
)
def test_an_end_is_counted_once_by_its_reason(end: Ending, reason: str) -> None:
    exporter = Exporter("m")
    VllmRequestMetrics(exporter).ended(CALL, end)
    page = page_of(exporter)
    counts = {r: page.value(vllm.SUCCESSES, finished_reason=r) for r in REASONS}
    assert counts == {r: float(r == reason) for r in REASONS}
