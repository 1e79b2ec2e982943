"""A drill as one picture: memory by owner, level, pool, and what the clients got meanwhile."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvcache.pressure import PressureLevel
from service.drill.course import Course
from service.drill.findings import Findings, Precursor
from service.drill.record import tokens_over_time
from service.drill.sample import Ledger, Sample

_BIN_SECONDS = 0.5
_LETTER_SHARE = 0.0095  # of the width, that a letter of the name of a level takes
_OWNERS: tuple[tuple[str, str, Callable[[Ledger], int]], ...] = (
    ("process", "#3f5a80", lambda ledger: ledger.runtime_bytes),
    ("weights", "#5b7ba6", lambda ledger: ledger.weights_bytes),
    ("KV pool", "#7db6ad", lambda ledger: ledger.kv_bytes),
    ("steps", "#e6bd55", lambda ledger: ledger.activation_bytes),
    ("another process", "#b9a3c9", lambda ledger: ledger.other_bytes),
)
_LEVELS = {
    PressureLevel.NORMAL: "#d7e5d3",
    PressureLevel.ELEVATED: "#f5dc8a",
    PressureLevel.HIGH: "#ee9f4d",
    PressureLevel.CRITICAL: "#c43d34",
}
_MARK_HEIGHT = 1.035  # of marks over the device, in its size
_INK, _FAINT, _ALARM = "#2b2f36", "#8a8f98", "#c43d34"
_STYLE: dict[Any, Any] = {
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _FAINT,
    "ytick.color": _FAINT,
    "svg.hashsalt": "plimsoll",  # the same drill gives the same bytes
}


def save_plot(course: Course, findings: Findings, path: Path) -> None:
    """Writes the picture; its format is that of the file's suffix."""
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 7), layout="constrained", facecolor="white")
        panels = figure.subplots(4, 1, sharex=True, height_ratios=(4.2, 0.35, 1.4, 1.7))
        memory, level, pool, rate = panels
        _draw_memory(memory, course.samples)
        _draw_level(level, course.samples, course.duration_seconds)
        _draw_pool(pool, course.samples)
        _draw_rate(rate, course)
        for panel in panels:
            _part_phases(panel, course)
        _name_phases(memory, course)
        _show_lead(memory, findings.precursor, _total_mb(course.samples))
        _show_losses(rate, course, findings)
        rate.set_xlabel("seconds")
        rate.set_xlim(0, course.duration_seconds)
        figure.align_ylabels(panels)
        figure.suptitle(_title(findings), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def _title(findings: Findings) -> str:
    streams = findings.streams
    return (
        f"{streams.requests} live streams while memory runs out and engines die: "
        f"{streams.dropped} dropped, {streams.damage.lost} tokens lost, "
        f"{streams.damage.repeated} repeated, {streams.damage.differing} different"
    )


def _draw_memory(panel: Axes, samples: Sequence[Sample]) -> None:
    told = [(s.seconds, s.ledger) for s in samples if s.ledger is not None]
    seconds = np.array([at for at, _ in told])
    layers = [np.array([read(ledger) for _, ledger in told]) / 1e6 for _, _, read in _OWNERS]
    panel.stackplot(
        seconds,
        *layers,
        labels=[name for name, _, _ in _OWNERS],
        colors=[color for _, color, _ in _OWNERS],
        linewidth=0,
    )
    total = _total_mb(samples)
    panel.axhline(total, color=_INK, linewidth=1.2)
    failed = [
        after.seconds
        for before, after in itertools.pairwise(samples)
        if sum(after.rungs) > sum(before.rungs)
    ]
    panel.plot(
        failed,
        [total * _MARK_HEIGHT] * len(failed),
        linestyle="none",
        marker="v",
        markersize=7,
        color=_ALARM,
        label="a step found no memory",
    )
    panel.text(
        0.995,
        total * 1.01,
        f"the device has {total:.0f} MB",
        transform=panel.get_yaxis_transform(),
        ha="right",
        va="bottom",
        fontsize=8.5,
    )
    panel.set_yticks([tick for tick in panel.get_yticks() if 0 <= tick < total])
    panel.set_ylim(0, total * 1.26)
    panel.set_ylabel("device memory, MB")
    panel.legend(loc="lower right", ncols=6, fontsize=9, framealpha=0.9, edgecolor="none")


def _total_mb(samples: Sequence[Sample]) -> float:
    return max((s.ledger.total_bytes for s in samples if s.ledger is not None), default=1) / 1e6


def _show_lead(panel: Axes, precursor: Precursor, total: float) -> None:
    """An arrow from the first warning to the first failure."""
    first, rung = precursor.first_seconds, precursor.first_rung_seconds
    if first is None or rung is None or rung <= first:
        return
    height = total * _MARK_HEIGHT
    arrow = {"arrowstyle": "->", "color": _INK, "shrinkA": 0, "shrinkB": 5}
    panel.annotate("", (rung, height), (first, height), arrowprops=arrow)
    panel.text(
        (first + rung) / 2,
        height * 1.015,
        f"warned {rung - first:.1f} s ahead",
        ha="center",
        va="bottom",
        fontsize=8.5,
    )


def _draw_level(panel: Axes, samples: Sequence[Sample], duration_seconds: float) -> None:
    for level, group in itertools.groupby(
        itertools.pairwise(samples), key=lambda pair: pair[0].level
    ):
        pairs = list(group)
        begin, end = pairs[0][0].seconds, pairs[-1][1].seconds
        panel.barh(0, end - begin, left=begin, height=1, color=_LEVELS[level], linewidth=0)
        if end - begin > _LETTER_SHARE * len(level.name) * duration_seconds:
            ink = "white" if level is PressureLevel.CRITICAL else _INK
            panel.text(
                (begin + end) / 2, 0, level.name, ha="center", va="center", fontsize=8, color=ink
            )
    panel.set_ylim(-0.5, 0.5)
    panel.set_yticks([])
    panel.set_ylabel("level", rotation=0, ha="right", va="center")
    panel.spines[["left", "bottom"]].set_visible(False)
    panel.tick_params(bottom=False)


def _draw_pool(panel: Axes, samples: Sequence[Sample]) -> None:
    told = [s for s in samples if s.pool_blocks > 0]
    seconds = [s.seconds for s in told]
    panel.step(
        seconds, [s.pool_blocks for s in told], where="post", color="#3f857a", label="in the pool"
    )
    held = [s.held_blocks for s in told]
    panel.fill_between(
        seconds, held, step="post", color="#7db6ad", alpha=0.6, linewidth=0, label="held by streams"
    )
    panel.set_ylim(bottom=0)
    panel.set_ylabel("KV blocks")
    panel.legend(loc="center right", fontsize=8, framealpha=0.9, edgecolor="none")


def _draw_rate(panel: Axes, course: Course) -> None:
    bins = max(1, round(course.duration_seconds / _BIN_SECONDS))
    edges = np.linspace(0, course.duration_seconds, bins + 1)
    rates = tokens_over_time(course.streams, edges)
    panel.stairs(rates, edges, fill=True, color="#5b7ba6", alpha=0.85)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("tokens/s")


def _part_phases(panel: Axes, course: Course) -> None:
    for mark in course.phases[1:]:
        panel.axvline(mark.begin_seconds, color=_FAINT, linewidth=0.8, linestyle=(0, (2, 3)))


def _name_phases(panel: Axes, course: Course) -> None:
    for mark in course.phases:
        middle = (mark.begin_seconds + mark.end_seconds) / 2
        panel.text(
            middle,
            0.985,
            mark.stage.value.replace(" ", "\n"),
            transform=panel.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=9,
        )


def _show_losses(panel: Axes, course: Course, findings: Findings) -> None:
    """How long no client got a token."""
    for loss in findings.losses:
        mark = course.phase(loss.stage)
        if mark is not None:
            panel.text(
                (mark.begin_seconds + mark.end_seconds) / 2,
                0.96,
                f"{loss.silence_seconds:.1f} s\nsilent",
                transform=panel.get_xaxis_transform(),
                ha="center",
                va="top",
                fontsize=9,
                color=_ALARM,
            )
