"""The distributions and the throughput of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from service.bench.record import Outcome, RequestRecord
from service.bench.stats import Seconds, all_gaps, tokens_over_time, ttft_seconds

_BINS = 40


def save_plot(records: Sequence[RequestRecord], duration_seconds: float, path: Path) -> None:
    """Writes three panels: TTFT and ITL as cumulative shares, output tokens over time.

    The format is that of the file's suffix.
    """
    ok = [record for record in records if record.outcome is Outcome.OK]
    first = np.array([value for r in ok if (value := ttft_seconds(r)) is not None])
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    panels = figure.subplots(1, 3)
    _cumulative(panels[0], first, "time to first token")
    _cumulative(panels[1], all_gaps(ok), "time between tokens")
    edges = np.linspace(0, duration_seconds, _BINS + 1)
    rates = tokens_over_time(records, duration_seconds, _BINS) / np.diff(edges)
    panels[2].stairs(rates, edges, fill=True, alpha=0.6)
    panels[2].set_title("output tokens per second")
    panels[2].set_xlabel("seconds")
    panels[2].set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def _cumulative(panel: Axes, values: Seconds, title: str) -> None:
    panel.set_title(title)
    panel.set_xlabel("milliseconds")
    panel.set_ylabel("share of requests" if "first" in title else "share of tokens")
    panel.set_ylim(0, 1)
    panel.grid(alpha=0.3)
    if values.size == 0:
        return
    panel.ecdf(values * 1e3)
    for percentile in (50, 99):
        at = float(np.percentile(values, percentile)) * 1e3
        panel.axvline(at, linestyle=":", color="gray")
        panel.annotate(f"p{percentile} {at:.1f}", (at, 0.02), rotation=90, ha="right", fontsize=8)
