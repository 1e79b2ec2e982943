"""Tells a frozen engine from one that is only slow: a judgement over plain figures."""

from __future__ import annotations

from dataclasses import dataclass

# Of a wait that ends only when a device answers, this share counts: at 8 s such a wait may last a
# minute, longer than a swap or a file server that works takes for a layer.
_DEVICE_WAIT_SHARE = 1 / 8


@dataclass(frozen=True, slots=True)
class Activity:
    """What a process does, besides beating."""

    wants_cpu: bool  # one of its threads is on a CPU or queues for one
    cpu_seconds: float  # that its threads have had in all their life
    # One of its threads waits and cannot be interrupted: for pages from a swap or a file, or as
    # the kernel throttles a control group with too much memory.
    waits_for_device: bool = False


class FreezeJudge:
    """Adds up the time in which an engine could have come on and did not.

    An engine all of whose threads sleep or are stopped lacks no CPU: the whole of the time
    counts. One that queues for a CPU is not to blame for the wait, however long: of that
    time counts what it got. So a deadlock, a lost wake-up, SIGSTOP and an endless loop are
    found, and an engine that shares its cores with others, or is throttled by a CPU limit,
    is left alone for as long as its work takes there.

    One that waits for a device is not to blame either, but what it waits for may be lost, and
    then it gets no CPU time that would ever add up: an eighth of that time counts, or the CPU
    time if that is more. So swapping costs an engine some patience and not its life, and a lost
    disk is found all the same.
    """

    def __init__(self, limit_seconds: float) -> None:
        self._limit_seconds = limit_seconds
        self._beats: int | None = None
        self._activity: Activity | None = None  # at the last look that found no progress
        self.silent_seconds = 0.0

    def progressed(self, beats: int) -> bool:
        """Whether the engine came on since the last look; the count starts anew then."""
        if beats == self._beats:
            return False
        self._beats = beats
        self._activity = None
        self.silent_seconds = 0.0
        return True

    def is_frozen(self, activity: Activity, elapsed_seconds: float) -> bool:
        """Judges a look without progress, `elapsed_seconds` after the look before it."""
        before, self._activity = self._activity, activity
        if before is None:
            return False  # it may have come on until just now
        used_seconds = activity.cpu_seconds - before.cpu_seconds
        if before.wants_cpu or activity.wants_cpu:
            counted_seconds = used_seconds
        elif before.waits_for_device or activity.waits_for_device:
            counted_seconds = max(used_seconds, elapsed_seconds * _DEVICE_WAIT_SHARE)
        else:
            counted_seconds = elapsed_seconds
        self.silent_seconds += min(elapsed_seconds, counted_seconds)
        return self.silent_seconds >= self._limit_seconds
