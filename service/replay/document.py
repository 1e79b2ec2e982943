"""A replay as a JSON document for other programs.

The form is `SCHEMA`: its number rises when a field changes its meaning or goes away.
Times are seconds, shares between 0 and 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version

from kvcache.replay import CacheFigures, ReplayReport

SCHEMA = "plimsoll.replay/1"


def cache_document(
    cache: CacheFigures, trace: str, settings: Mapping[str, object]
) -> dict[str, object]:
    """The document of a replay of the cache alone."""
    return _head(trace, settings) | {"cache": asdict(cache) | {"hit_ratio": cache.hit_ratio}}


def report_document(
    report: ReplayReport, trace: str, settings: Mapping[str, object]
) -> dict[str, object]:
    """The document of a whole replay, the timeline included."""
    fields = asdict(report)
    fields["cache"]["hit_ratio"] = report.cache.hit_ratio
    fields["load_line_share"] = report.load_line_share
    return _head(trace, settings) | fields


def _head(trace: str, settings: Mapping[str, object]) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "plimsoll_version": version("plimsoll"),
        "trace": trace,
        "settings": dict(settings),
    }
