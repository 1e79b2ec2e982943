"""From what was seen of GPUs to metrics. Pure.

What a driver does not tell has no series: a 0 would be taken for an empty GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from service.device.nvml import GpuMemory
from service.telemetry.catalog import gpu
from service.telemetry.catalog.metric import Metric
from service.telemetry.exporter import Reading
from service.telemetry.gpu_sampler import GpuSample, GpuView
from service.telemetry.readings import Moment

# What is older than this and one interval counts no more, be it a sample or an answer: it is long
# for a driver that works, and soon for one that shows an old figure as if it were new.
_LATE_SECONDS = 10.0

_MemoryRows: TypeAlias = "tuple[tuple[Metric, Callable[[GpuMemory], float | None]], ...]"
_SampleRows: TypeAlias = "tuple[tuple[Metric, Callable[[GpuSample], float | None]], ...]"

_MEMORY: _MemoryRows = (
    (gpu.CAPACITY, lambda memory: memory.total_bytes),
    (gpu.USED, lambda memory: memory.used_bytes),
    (gpu.FREE, lambda memory: memory.free_bytes),
    (gpu.RESERVED, lambda memory: memory.reserved_bytes),
)
_REST: _SampleRows = (
    (gpu.PROCESS_MEMORY, lambda sample: sample.process_bytes),
    (gpu.PROCESS_MEMORY_KNOWN, lambda sample: sample.process_bytes is not None),
    (gpu.UTILIZATION, lambda sample: sample.utilization),
)


def gpu_readings(view: GpuView, now: Moment, interval_seconds: float) -> Iterator[Reading]:
    """All that is known of the GPUs at this moment, when they are looked at so often."""
    oldest_seconds = now.monotonic_seconds - interval_seconds - _LATE_SECONDS
    answered_seconds = view.answered_seconds
    answers = view.available and answered_seconds is not None and answered_seconds >= oldest_seconds
    yield Reading(gpu.AVAILABLE, answers)
    yield Reading(gpu.FAILURES, view.failures)
    if answered_seconds is not None:
        yield Reading(gpu.SAMPLED, now.unix(answered_seconds))
    if view.sampled_seconds < oldest_seconds:
        return
    for metric, of_memory in _MEMORY:
        for sample in view.samples:
            if sample.memory is not None:
                yield from _known(metric, of_memory(sample.memory), sample)
    for metric, of_sample in _REST:
        for sample in view.samples:
            yield from _known(metric, of_sample(sample), sample)


def _known(metric: Metric, value: float | None, sample: GpuSample) -> Iterator[Reading]:
    if value is not None:
        yield Reading(metric, value, (sample.gpu,))
