"""Puts faults between an engine and what it works with."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from service.device.cpu import CpuDevice
from service.engine.errors import StartError
from service.engine.faulty.memory import FaultyArena, FaultyDevice
from service.engine.faulty.operators import BeforeOperators
from service.engine.faulty.runner import FaultyRunner
from service.engine.faulty.schedule import FaultSchedule
from service.engine.faulty.tier import FaultyTier
from service.engine.messages import FaultFired, Inject
from service.engine.seams import Seams

# A lost read blocks its thread for so many times what anybody waits for it.
_PATIENCE = 2.0


class _Desk:
    """Takes the orders and tells what was carried out, also by threads that read from tiers."""

    def __init__(self, tell: Callable[[FaultFired], None], clock: Callable[[], float]) -> None:
        self.schedule = FaultSchedule()
        self._tell = tell
        self._clock = clock
        self._lock = threading.Lock()  # between the engine and the threads
        self._lost: queue.SimpleQueue[int] = queue.SimpleQueue()  # not told of yet

    def inject(self, order: Inject) -> None:
        """Replaces all faults."""
        with self._lock:
            self.schedule.replace(order.faults)

    def fired(self, fault_id: int) -> None:
        """Tells of a strike. On the thread of the engine."""
        self._tell(FaultFired(fault_id))

    def loses_read(self) -> bool:
        """Whether the answer of this read is to get lost. On any thread."""
        with self._lock:
            fault_id = self.schedule.strike_load(self._clock())
        if fault_id is not None:
            self._lost.put(fault_id)
        return fault_id is not None

    def tell_losses(self) -> None:
        """Tells of the reads that got lost. On the thread of the engine, now and then."""
        while not self._lost.empty():
            self.fired(self._lost.get())


def with_faults(
    seams: Seams,
    *,
    tell: Callable[[FaultFired], None],
    beat: Callable[[], None],
    load_seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Seams:
    """The same engine, in which all goes wrong that `Seams.inject` is told.

    Args:
        tell: hears of each strike, on the thread of the engine.
        beat: says that the engine comes on.
        load_seconds: for which a sequence waits for a load from a tier.

    Raises StartError for a device of which no other process can be made to take memory.
    """
    device = seams.device
    if not isinstance(device, CpuDevice):
        raise StartError("allow_faults is on: only an engine on a CPU takes faults")
    desk = _Desk(tell, clock)
    faulty_device = FaultyDevice(device, desk.schedule, desk.tell_losses, clock)
    runner = FaultyRunner(
        seams.runner,
        faulty_device,
        desk.schedule,
        BeforeOperators,
        fired=desk.fired,
        beat=beat,
        clock=clock,
    )
    return Seams(
        runner=runner,
        device=faulty_device,
        arena=FaultyArena(seams.arena, desk.schedule, desk.fired, clock),
        wrap_tier=lambda tier: FaultyTier(
            seams.wrap_tier(tier), desk.loses_read, _PATIENCE * load_seconds
        ),
        inject=desk.inject,
    )
