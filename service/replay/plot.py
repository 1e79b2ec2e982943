"""The course of a replay as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from kvcache.replay import ReplayReport


def save_plot(report: ReplayReport, load_line: float, path: Path) -> None:
    """Writes three panels over simulated time: the pool, the sequences, the hit ratio.

    The format is that of the file's suffix.
    """
    timeline = report.timeline
    seconds = np.array([sample.seconds for sample in timeline])
    held = np.array([sample.held_blocks for sample in timeline]) / report.total_blocks
    cached = np.array([sample.cached_blocks for sample in timeline]) / report.total_blocks
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    pool, sequences, hits = figure.subplots(1, 3)
    pool.stackplot(seconds, held, cached, labels=["held", "cached"], alpha=0.7)
    pool.axhline(load_line, linestyle=":", color="black", label="load line")
    pool.set_title("share of the pool")
    pool.set_ylim(0, 1)
    pool.legend(loc="lower right")
    sequences.plot(seconds, [sample.running for sample in timeline], label="running")
    sequences.plot(seconds, [sample.waiting for sample in timeline], label="waiting")
    sequences.set_title("sequences")
    sequences.set_ylim(bottom=0)
    sequences.legend(loc="upper right")
    hits.plot(
        seconds,
        [sample.hit_tokens / max(1, sample.lookup_tokens) for sample in timeline],
    )
    hits.set_title("hit ratio so far")
    hits.set_ylim(0, 1)
    for panel in (pool, sequences, hits):
        panel.set_xlabel("simulated seconds")
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
