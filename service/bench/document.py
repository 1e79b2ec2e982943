"""A run as a JSON document for other programs.

The form is `SCHEMA`: its number rises when a field changes its meaning or goes away.
Times are seconds; `requests` is there when raw figures were asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version

from service.bench.record import RequestRecord
from service.bench.stats import tokens_over_time
from service.bench.summary import Summary

SCHEMA = "plimsoll.bench/1"
_TIMELINE_BINS = 100


def as_document(
    *,
    started: str,
    server: Mapping[str, object],
    load: Mapping[str, object],
    summary: Summary,
    records: Sequence[RequestRecord],
    with_requests: bool,
) -> dict[str, object]:
    """The document of one run.

    Args:
        started: wall-clock time of the start, ISO 8601.
        server: what served.
        load: what was asked for.
        with_requests: include every request with the arrival of each message.
    """
    timeline = tokens_over_time(records, summary.duration_seconds, _TIMELINE_BINS)
    document: dict[str, object] = {
        "schema": SCHEMA,
        "plimsoll_version": version("plimsoll"),
        "started": started,
        "server": dict(server),
        "load": dict(load),
        "summary": asdict(summary),
        "timeline": {
            "bin_seconds": summary.duration_seconds / _TIMELINE_BINS,
            "output_tokens": timeline.tolist(),
        },
    }
    if with_requests:
        document["requests"] = [_request(record) for record in records]
    return document


def _request(record: RequestRecord) -> dict[str, object]:
    fields = asdict(record)
    fields["arrivals"] = [[arrival.seconds, arrival.tokens] for arrival in record.arrivals]
    return fields
