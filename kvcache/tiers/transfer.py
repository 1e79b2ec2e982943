"""One load of blocks from the tiers to the device."""

from __future__ import annotations

import enum
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvcache.leases import LoadLease
from kvcache.tiers.host import HostPin
from kvcache.tiers.keys import BlockKey
from kvcache.tiers.worker import Job, TierWorker


class TransferState(enum.Enum):
    """Where a load is in its life; all but the first two are its end."""

    LOOKING = "looking"  # a remote store is asked what it has
    LOADING = "loading"  # blocks are leased and being filled
    DONE = "done"  # what was found whole is in the index
    MISSED = "missed"  # too little was there, or the device had no room
    EXPIRED = "expired"  # the lease ended before the last block came
    CANCELLED = "cancelled"  # nobody waits any longer, or the namespace was cleared


class FromHost:
    """Blocks that the host tier keeps until they are copied."""

    def __init__(self, pin: HostPin) -> None:
        self._pin = pin
        self.count = len(pin)

    def ready(self) -> int | None:
        """Leading blocks that can be copied; all of them, at once."""
        return self.count

    def view(self, place: int) -> memoryview:
        """The bytes of one block."""
        return self._pin.view(place)

    def close(self) -> None:
        """Lets go of them."""
        self._pin.close()


class FromThread:
    """Blocks that a thread reads into buffers that nobody else writes to.

    The device never sees a late answer: only the engine copies out of the buffers, and it
    does not any more once it has let go of them.
    """

    def __init__(self, worker: TierWorker, keys: Sequence[BlockKey], block_bytes: int) -> None:
        self.worker = worker
        self.count = len(keys)
        # Page-aligned like the pool: a copy between unlike alignments takes three times as long.
        staging = memoryview(mmap.mmap(-1, self.count * block_bytes, flags=mmap.MAP_PRIVATE))
        starts = range(0, len(staging), block_bytes)
        self._views = [staging[start : start + block_bytes] for start in starts]
        self._job = Job(keys, self._views)
        worker.submit(self._job)

    def ready(self) -> int | None:
        """Leading blocks that were read and are whole; None: the thread is not done."""
        return self._job.answer

    def view(self, place: int) -> memoryview:
        """The bytes of one block."""
        return self._views[place]

    def close(self) -> None:
        """Lets go of the buffers; a thread that is not done keeps them to itself."""
        self._views = []


Source = FromHost | FromThread


@dataclass(slots=True, eq=False)
class Transfer:
    """A load that was asked for; its caller reads `is_over` and `loaded_tokens`."""

    namespace: bytes
    token_ids: NDArray[np.int32]
    tenant: str
    keys: Sequence[BlockKey]  # of all whole blocks that may be hit, from the first one on
    missing_from: int  # of the keys: the first that the device lacked
    state: TransferState = TransferState.LOOKING
    loaded_tokens: int = 0  # leading tokens that are in the index through this load
    waiters: int = 1
    is_cleared: bool = False  # the namespace was cleared since
    probe: Job | None = None
    probe_ends_at_seconds: float = 0.0
    lease: LoadLease | None = None
    sources: list[Source] = field(default_factory=list)  # of what is still to be copied
    taken: int = 0  # blocks of the first source that were copied
    copied: int = 0  # blocks of the lease that were written

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self.state not in (TransferState.LOOKING, TransferState.LOADING)
