"""Memory that others take, or that cannot be had, as ordered."""

from __future__ import annotations

from collections.abc import Callable

from kvcache import KVLayout
from kvcache.errors import MemoryShortError
from service.device.cpu import CpuDevice
from service.device.memory import MemoryFigures
from service.device.owner import Owner
from service.engine.faulty.schedule import FaultSchedule
from service.engine.resize import ElasticMemory


class FaultyDevice:
    """A `CpuDevice` of which another process takes a share; each look lets it take its due."""

    def __init__(
        self,
        device: CpuDevice,
        schedule: FaultSchedule,
        looked: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        """`looked` is called at each look, which the engine takes ten times a second."""
        self._device = device
        self._schedule = schedule
        self._looked = looked
        self._clock = clock
        self._foreign_bytes = 0  # of the other process

    def figures(self) -> MemoryFigures:
        self._crowd()
        self._looked()
        return self._device.figures()

    def take(self, owner: Owner, size_bytes: int) -> None:
        self._device.take(owner, size_bytes)

    def give_back(self, owner: Owner, size_bytes: int) -> None:
        self._device.give_back(owner, size_bytes)

    def release_cached(self) -> int:
        return self._device.release_cached()

    def _crowd(self) -> None:
        """Lets the other process have what it wants by now, as far as it is free."""
        share = self._schedule.foreign_share(self._clock())
        if share or self._foreign_bytes:
            wanted_bytes = int(share * self._device.figures().total_bytes)
            self._foreign_bytes = self._device.set_foreign(wanted_bytes)


class FaultyArena:
    """`ElasticMemory` that does not grow when a fault says so."""

    def __init__(
        self,
        arena: ElasticMemory,
        schedule: FaultSchedule,
        fired: Callable[[int], None],
        clock: Callable[[], float],
    ) -> None:
        self._arena = arena
        self._schedule = schedule
        self._fired = fired
        self._clock = clock

    @property
    def layout(self) -> KVLayout:
        return self._arena.layout

    @property
    def num_blocks(self) -> int:
        return self._arena.num_blocks

    @property
    def max_blocks(self) -> int:
        return self._arena.max_blocks

    def require_memory(self, num_blocks: int) -> None:
        self._arena.require_memory(num_blocks)

    def grow(self, num_blocks: int) -> None:
        fault_id = self._schedule.strike_growth(self._clock())
        if fault_id is None:
            self._arena.grow(num_blocks)
            return
        self._fired(fault_id)
        block_bytes = self.layout.block_bytes
        wanted_bytes = (num_blocks - self.num_blocks) * block_bytes
        raise MemoryShortError(self.num_blocks * block_bytes, wanted_bytes, 0, 0)

    def shrink(self, num_blocks: int) -> None:
        self._arena.shrink(num_blocks)
