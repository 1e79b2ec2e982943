"""Looks at the GPUs once a second, on a thread of its own.

A driver may not answer for minutes, or ever, when a GPU has fallen off the bus. Then this thread
hangs and nothing else does: what it saw last gets old, which `GpuView` tells, and the end of the
server does not wait for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import structlog

from service.device.nvml import DriverError, GpuMemory, NoDriver, NvmlLibrary, open_library
from service.device.visible_gpus import VisibleGpu, visible_gpus

Answer = TypeVar("Answer")

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment. None: not told."""

    gpu: str  # its label
    memory: GpuMemory | None
    process_bytes: int | None  # of the processes of this server
    utilization: float | None  # from 0 to 1


@dataclass(frozen=True, slots=True)
class GpuView:
    """What is known of the GPUs. Times are monotonic."""

    available: bool = False  # the driver has answered once
    samples: tuple[GpuSample, ...] = ()
    sampled_seconds: float = 0.0  # when the samples were taken
    # When all that was asked was last answered; before the first time, when the driver was first
    # asked. None: there is no driver.
    answered_seconds: float | None = None
    failures: int = 0  # questions that the driver answered with an error


class GpuSampler:
    """Keeps the newest view. To be asked from any thread, and never waits."""

    def __init__(
        self,
        interval_seconds: float,
        process_ids: Callable[[], Collection[int]],
        visible_devices: str | None,
        open_library: Callable[[], NvmlLibrary] = open_library,
    ) -> None:
        """`process_ids` are of this server, `visible_devices` is what CUDA_VISIBLE_DEVICES says.

        `process_ids` is called on the sampler's thread.
        """
        self._interval_seconds = interval_seconds
        self._process_ids = process_ids
        self._visible_devices = visible_devices
        self._open_library = open_library
        self._view = GpuView()  # replaced, never changed: other threads read it
        self._failing = False  # and it was told
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpu sampler", daemon=True)

    @property
    def view(self) -> GpuView:
        """What was seen last."""
        return self._view

    def start(self) -> None:
        """Begins to look."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it after the question that is under way, for which nobody waits. Idempotent."""
        self._stopping.set()

    def _run(self) -> None:
        self._view = replace(self._view, answered_seconds=time.monotonic())
        try:
            gpus = self._open()
        except NoDriver as reason:
            _log.debug("no metrics of GPUs", cause=str(reason))
            self._view = replace(self._view, answered_seconds=None)
            return
        while not self._stopping.is_set():
            self._look(gpus)
            self._stopping.wait(self._interval_seconds)

    def _open(self) -> list[VisibleGpu]:
        """The GPUs, as soon as the driver answers; none when told to stop. Raises NoDriver."""
        while not self._stopping.is_set():
            try:
                gpus = visible_gpus(self._open_library(), self._visible_devices)
            except DriverError as error:
                self._failed([f"the driver: {error}"])
                self._stopping.wait(self._interval_seconds)
            else:
                self._view = replace(self._view, available=True)
                return gpus
        return []

    def _look(self, gpus: list[VisibleGpu]) -> None:
        began_seconds = time.monotonic()
        process_ids = self._process_ids()
        causes: list[str] = []

        def told(gpu: VisibleGpu, question: Callable[[], Answer | None]) -> Answer | None:
            try:
                return question()
            except DriverError as error:
                causes.append(f"GPU {gpu.label}: {error}")
                return None

        samples = tuple(
            GpuSample(
                gpu.label,
                told(gpu, gpu.driver.memory),
                told(gpu, partial(gpu.driver.process_bytes, process_ids)),
                told(gpu, gpu.driver.utilization),
            )
            for gpu in gpus
        )
        self._view = replace(self._view, samples=samples, sampled_seconds=began_seconds)
        if causes:
            self._failed(causes)
            return
        self._view = replace(self._view, answered_seconds=began_seconds)
        if self._failing:
            self._failing = False
            _log.info("the driver answers again about GPUs")

    def _failed(self, causes: list[str]) -> None:
        """Counts questions without an answer; tells only of the first look of a row of them."""
        self._view = replace(self._view, failures=self._view.failures + len(causes))
        if not self._failing:
            self._failing = True
            _log.warning("the driver does not answer about GPUs", causes=causes)
