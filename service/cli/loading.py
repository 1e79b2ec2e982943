"""Progress of a loading model: a bar on a terminal, a line per stage elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from service.engine.messages import Loading


class LoadingDisplay:
    """Shows `Loading` messages on stderr until the model is ready."""

    def __init__(self, model: str) -> None:
        self._model = model
        self._begin_seconds = time.monotonic()
        self._stage = ""
        self._is_finished = False
        self._task: TaskID | None = None
        console = Console(stderr=True)
        self._bar: Progress | None = None
        if console.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[amount]}"),
                TimeElapsedColumn(),
                console=console,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, loading: Loading) -> None:
        """Shows the state of one stage; nothing after `finish`: a restart is told in the log."""
        if self._is_finished:
            return
        is_new = loading.stage != self._stage
        self._stage = loading.stage
        if self._bar is not None:
            self._update_bar(self._bar, loading, is_new)
        elif is_new:
            print(f"loading {self._model}: {loading.stage}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """The model is ready."""
        self._is_finished = True
        if self._bar is not None:
            self._bar.stop()
        seconds = time.monotonic() - self._begin_seconds
        print(f"{self._model} is ready after {seconds:.1f} s", file=sys.stderr, flush=True)

    def _update_bar(self, bar: Progress, loading: Loading, is_new: bool) -> None:
        total = loading.total or None  # None: the bar pulses
        if self._task is None or is_new:
            if self._task is not None:
                bar.remove_task(self._task)
            self._task = bar.add_task(
                f"{self._model}: {loading.stage}", total=total, amount=amount(loading)
            )
        bar.update(self._task, completed=loading.done, total=total, amount=amount(loading))


def amount(loading: Loading) -> str:
    """What is done, of what, as `120 of 270 MB`; nothing for a stage that cannot tell."""
    if not loading.done and not loading.total:
        return ""
    scale, unit = (1e6, "MB") if loading.unit == "bytes" else (1, loading.unit)
    done = f"{loading.done / scale:.0f}"
    return f"{done} of {loading.total / scale:.0f} {unit}" if loading.total else f"{done} {unit}"
