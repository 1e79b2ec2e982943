"""A CPU as a device: the memory of the machine, or a part of it that behaves like VRAM."""

from __future__ import annotations

from collections.abc import Callable

from kvcache.host_memory import available_memory_bytes, total_memory_bytes
from service.device.errors import DeviceOutOfMemoryError
from service.device.ledger import Ledger
from service.device.memory import MemoryFigures
from service.device.owner import OF_ALLOCATOR, Owner
from service.device.process_memory import peak_bytes


class CpuDevice:
    """`DeviceMemory` under a caching allocator, over memory of the host.

    With a limit it is a device of that size, which claims fill up whether their pages were
    written or not, as on a GPU. Without one its size is that of the machine, or of the
    smallest control group around the process. In both cases no more is free than the host
    really has: a claim that the host cannot back would end in its OOM killer.

    The host's figure counts pages that were written. Two kinds of claims have none: KV blocks
    that were promised and not written yet (`promised_bytes`), and the allocator's cache, which
    on a CPU is kept in these books only. Both are taken off, and the cache counts as far as the
    host can back it. A look at the host takes about a millisecond: a step within the cache goes
    by the last one, which is that of the newest `figures`.
    """

    def __init__(
        self,
        limit_bytes: int | None = None,
        *,
        context_bytes: int = 0,
        promised_bytes: Callable[[], int] = lambda: 0,
        available_bytes: Callable[[], int] = available_memory_bytes,
        machine_bytes: Callable[[], int] = total_memory_bytes,
    ) -> None:
        """`context_bytes` are those of the process itself, before it loads anything.

        Raises DeviceOutOfMemoryError for a limit that is less than that.
        """
        self._total_bytes = machine_bytes() if limit_bytes is None else limit_bytes
        self._available_bytes = available_bytes
        self.promised_bytes = promised_bytes
        self._ledger = Ledger()
        self._foreign_bytes = 0
        self._host_bytes = self._unpromised_bytes = 0  # of the host, as of the last look
        self._retries = self._ooms = 0
        if context_bytes > self._total_bytes:
            raise DeviceOutOfMemoryError(
                Owner.CONTEXT, context_bytes, self._total_bytes, self._total_bytes
            )
        self._ledger.take(Owner.CONTEXT, context_bytes)

    def figures(self) -> MemoryFigures:
        self._look()
        free_bytes = self._free_bytes
        return MemoryFigures(
            total_bytes=self._total_bytes,
            free_bytes=free_bytes,
            by_owner=self._ledger.by_owner(self._total_bytes - free_bytes),
            reclaimable_bytes=self._reclaimable_bytes,
            host_available_bytes=self._host_bytes,
            allocated_bytes=self._ledger.allocated_bytes,
            reserved_bytes=self._ledger.allocated_bytes + self._ledger.cached_bytes,
            inactive_bytes=0,  # these books know no segments: all of the cache can go
            allocator_retries=self._retries,
            allocator_ooms=self._ooms,
        )

    def take(self, owner: Owner, size_bytes: int) -> None:
        is_step = owner is Owner.ACTIVATIONS
        if not is_step or size_bytes > self._reclaimable_bytes:
            self._look()
            there_bytes = self._free_bytes + (self._reclaimable_bytes if is_step else 0)
            if size_bytes > there_bytes:
                self._make_room(owner, size_bytes)
        self._ledger.take(owner, size_bytes)

    def give_back(self, owner: Owner, size_bytes: int) -> None:
        self._ledger.give_back(owner, size_bytes)

    def release_cached(self) -> int:
        return self._ledger.drop_cache()

    def set_foreign(self, size_bytes: int) -> int:
        """Makes another process have this much of the device; answers what it got.

        That is at most what is free beside what it has already: nobody can take what the
        allocator of this process keeps.
        """
        if size_bytes < 0:
            raise ValueError(f"size_bytes is {size_bytes}, but must be at least 0")
        had_bytes, self._foreign_bytes = self._foreign_bytes, 0
        self._look()
        # Where the host has less than was promised, what it has already is not taken away.
        self._foreign_bytes = min(size_bytes, max(had_bytes, self._free_bytes))
        return self._foreign_bytes

    def peak_bytes(self, work: Callable[[], object]) -> int | None:
        """By how much the memory of the process rose at most while `work` ran; None: unknown."""
        return peak_bytes(work)

    def _make_room(self, owner: Owner, wanted_bytes: int) -> None:
        """Drops the cache, as the allocator does before it gives up."""
        self._retries += 1
        self._ledger.drop_cache()
        free_bytes = self._free_bytes
        if wanted_bytes > free_bytes:
            self._ooms += owner in OF_ALLOCATOR
            raise DeviceOutOfMemoryError(owner, wanted_bytes, free_bytes, self._total_bytes)

    def _look(self) -> None:
        self._host_bytes = self._available_bytes()
        self._unpromised_bytes = self._host_bytes - self.promised_bytes()

    @property
    def _free_bytes(self) -> int:
        left_bytes = self._total_bytes - self._ledger.used_bytes - self._foreign_bytes
        unseen_bytes = self._ledger.cached_bytes + self._foreign_bytes
        return max(0, min(left_bytes, self._unpromised_bytes - unseen_bytes))

    @property
    def _reclaimable_bytes(self) -> int:
        backed_bytes = max(0, self._unpromised_bytes - self._foreign_bytes)
        return min(self._ledger.cached_bytes, backed_bytes)
