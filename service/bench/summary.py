"""All records of a run in a few figures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from service.bench.record import Outcome, RequestRecord
from service.bench.stats import (
    Distribution,
    ServiceLevel,
    all_gaps,
    distribution,
    ttft_seconds,
)


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that kept the service level."""

    service_level: ServiceLevel
    requests: int
    share: float  # of all that ended by themselves
    requests_per_second: float


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of a run. Latencies are those of requests that ended well."""

    duration_seconds: float
    requests: int
    outcomes: dict[Outcome, int]
    reasons: dict[str, int]  # of refused and failed ones, as "refused: QUEUE_FULL"
    ttft: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None
    prompt_tokens: int
    cached_prompt_tokens: int
    output_tokens: int
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    prefix_hit_rate: float | None  # cached share of the prompt tokens
    goodput: Goodput | None


def summarize(
    records: Sequence[RequestRecord],
    duration_seconds: float,
    service_level: ServiceLevel | None = None,
) -> Summary:
    """Output tokens of all requests count, those of failed and cancelled ones too: the
    server made them. Prompt tokens count once the server has reported them.
    """
    ok = [record for record in records if record.outcome is Outcome.OK]
    prompt_tokens = sum(record.prompt_tokens for record in records)
    cached_tokens = sum(record.cached_prompt_tokens for record in records)
    output_tokens = sum(record.output_tokens for record in records)
    seconds = max(duration_seconds, 1e-9)
    return Summary(
        duration_seconds=duration_seconds,
        requests=len(records),
        outcomes={kind: sum(r.outcome is kind for r in records) for kind in Outcome},
        reasons=dict(
            Counter(
                f"{record.outcome}: {record.reason}"
                for record in records
                if record.outcome in (Outcome.REFUSED, Outcome.FAILED)
            ).most_common()
        ),
        ttft=distribution([first for r in ok if (first := ttft_seconds(r)) is not None]),
        itl=distribution(all_gaps(ok)),
        e2e=distribution([record.ended_seconds - record.sent_seconds for record in ok]),
        prompt_tokens=prompt_tokens,
        cached_prompt_tokens=cached_tokens,
        output_tokens=output_tokens,
        requests_per_second=len(ok) / seconds,
        output_tokens_per_second=output_tokens / seconds,
        total_tokens_per_second=(prompt_tokens + output_tokens) / seconds,
        prefix_hit_rate=cached_tokens / prompt_tokens if prompt_tokens else None,
        goodput=_goodput(records, seconds, service_level) if service_level else None,
    )


def _goodput(
    records: Sequence[RequestRecord], seconds: float, service_level: ServiceLevel
) -> Goodput:
    ended = [record for record in records if record.outcome is not Outcome.CANCELLED]
    good = sum(service_level.is_met(record) for record in ended)
    return Goodput(service_level, good, good / len(ended) if ended else 0.0, good / seconds)
