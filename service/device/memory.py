"""One view of a device's memory: figures, and a ledger that says who has taken what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from service.device.owner import Owner


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory of the device at one moment; `by_owner` sums to `total_bytes - free_bytes`."""

    total_bytes: int
    free_bytes: int
    by_owner: Mapping[Owner, int]  # of every owner
    # Of the activations: kept by the allocator and not in use, as far as it is backed.
    reclaimable_bytes: int
    host_available_bytes: int  # what the machine and the control groups of the process have left
    allocated_bytes: int  # given out by the allocator, which the KV pool lies beside
    reserved_bytes: int  # had by the allocator: given out, and kept for what comes next
    inactive_bytes: int  # kept by it in segments that are in use, so that it cannot give them back
    allocator_retries: int  # allocations that needed the allocator's cache to be dropped
    allocator_ooms: int  # allocations that failed nevertheless

    @property
    def headroom_bytes(self) -> int:
        """What can be taken: `take` fails if and only if more is wanted."""
        return self.free_bytes + self.reclaimable_bytes


class DeviceMemory(Protocol):
    """The memory of one device, as the one process sees it that computes on it.

    Not thread-safe: it belongs to the thread of the engine.
    """

    def figures(self) -> MemoryFigures:
        """Looks at the memory now; cheap enough for ten times a second."""
        ...

    def take(self, owner: Owner, size_bytes: int) -> None:
        """Claims memory for `owner`, before it is allocated.

        Raises DeviceOutOfMemoryError, and claims nothing, where there is less.
        """
        ...

    def give_back(self, owner: Owner, size_bytes: int) -> None:
        """Ends a claim, in whole or in part, once the memory is not in use any more.

        Raises ValueError for more than the owner has.
        """
        ...

    def release_cached(self) -> int:
        """Makes the allocator let go of what it keeps and nobody uses; answers those bytes."""
        ...
