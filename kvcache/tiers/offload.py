"""Moves blocks between the device and its tiers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.errors import InvalidArgumentError
from kvcache.manager import CacheManager
from kvcache.memory import BlockMemory
from kvcache.rates import RateMeter
from kvcache.tiers.device_keys import DeviceKeys
from kvcache.tiers.host import HostTier
from kvcache.tiers.keys import BlockKey
from kvcache.tiers.loads import LoadLimits, Loads
from kvcache.tiers.tier import Tier, TierStats
from kvcache.tiers.transfer import Transfer, TransferState
from kvcache.tiers.worker import TierWorker, WorkerStats

_QUEUE_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class OffloadRates:
    """Measured bytes per second of the engine's own copies; None: not measured yet."""

    to_host_bytes_per_second: float | None
    to_device_bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class OffloadStats:
    """Figures of what was moved, and of the tiers."""

    spilled_blocks: int
    unspilled_blocks: int  # left the device when the host tier had no slot to give
    swapped_sequences: int
    unswapped_sequences: int  # the host tier had no room for: to be recomputed
    loaded_blocks: int
    ended_transfers: Mapping[TransferState, int]
    open_transfers: int
    refused_transfers: int  # not begun: too many were open
    host: TierStats
    disk: WorkerStats | None
    remote: WorkerStats | None


class Offload:
    """Keeps what leaves the device, and brings it back.

    Blocks that leave the index of the manager are copied to the host tier; what the host tier
    gives up goes down to the disk and the remote store, by threads that drop what they cannot
    keep up with. `prefetch` and `poll` bring blocks back. Clearing a namespace clears it in
    every tier: from that moment on none of its blocks is found, whatever is under way.

    Belongs to the thread of the engine, which asks `disk` what it has: a tier that knows that
    without waiting for anybody. `remote` is asked by a thread. `clock` is that of the manager:
    the deadlines of its leases are compared with it. `queue_bytes` bounds what waits in front
    of each of the two; 0 lets nothing through. Registers itself as a listener of the
    manager, whose index may have blocks already. The tiers are closed by `close`. Raises
    InvalidArgumentError when the blocks of `host` are not as large as those of `memory`.
    """

    def __init__(
        self,
        manager: CacheManager,
        memory: BlockMemory,
        fingerprint: bytes,
        host: HostTier,
        *,
        disk: Tier | None = None,
        remote: Tier | None = None,
        limits: LoadLimits | None = None,
        queue_bytes: int = _QUEUE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if host.block_bytes != memory.block_bytes:
            limit = f"{memory.block_bytes}, as those of the pool"
            raise InvalidArgumentError("host.block_bytes", host.block_bytes, limit)
        self._manager = manager
        self._memory = memory
        self._host = host
        self._clock = clock
        self._keys = DeviceKeys(fingerprint, manager.block_tokens)
        self._disk, self._remote = (
            None if tier is None else TierWorker(tier, queue_bytes=queue_bytes, clock=clock)
            for tier in (disk, remote)
        )
        self._below = [worker for worker in (self._disk, self._remote) if worker is not None]
        self._loads = Loads(
            manager,
            memory,
            fingerprint,
            host,
            self._disk,
            self._remote,
            limits or LoadLimits(),
            clock,
        )
        self._to_host = RateMeter()
        self._spilled = self._unspilled = self._swapped = self._unswapped = 0
        host.evicted = self._given_up
        for run in manager.snapshot().runs:
            self.stored(run.namespace, run.parent, run.blocks, run.token_ids)
        manager.add_listener(self)

    # --- bringing back -------------------------------------------------------

    def prefetch(
        self, namespace: bytes, token_ids: NDArray[np.int32], tenant: str = ""
    ) -> Transfer | None:
        """Begins to load what the tiers have of a prompt beyond the hits of the device.

        None when that is less than `min_blocks`, when the device has no room or the namespace
        is another tenant's, or when too many loads are open: go on without. Otherwise let the
        request wait until the transfer `is_over`, and admit it then: what was loaded is cached.
        Requests for the same blocks share a transfer. Call `cancel` for one that is aborted
        meanwhile.
        """
        return self._loads.prefetch(namespace, token_ids, tenant)

    def poll(self) -> int:
        """To be called once a step: goes on with the loads; answers the blocks written.

        Copies at most `poll_bytes`. Ends what is past its deadline: blocks that came in time
        are kept, the others are given back, and what comes later is ignored.
        """
        written = self._loads.poll()
        self._manager.expire()
        return written

    def cancel(self, transfer: Transfer) -> None:
        """The request that waited for this is gone. Ends the load if no other waits."""
        self._loads.cancel(transfer)

    # --- swapping ------------------------------------------------------------

    @property
    def host_room_blocks(self) -> int:
        """Blocks that can be swapped out now, those that the host has already not counted."""
        return self._host.room_blocks

    def swap_out(self, sequence_id: int) -> int:
        """Copies the computed blocks of a running sequence to the host and keeps them there.

        Answers the tokens kept: all that fill whole blocks, or 0 when the host tier has no
        room or the sequence does not publish; then nothing has changed, and the sequence is
        to be recomputed. Preempt it afterwards, `prefetch` its tokens to bring it back, and
        `forget` it once it runs again or is aborted.
        """
        size = self._manager.block_tokens
        whole = self._manager.computed_tokens(sequence_id) // size
        blocks = self._manager.block_table(sequence_id)[:whole].tolist()
        keys = self._keys.of(blocks)
        if not keys or not self._host.has_room_for(keys):
            self._unswapped += 1
            return 0
        for block, key in zip(blocks, keys, strict=True):
            if not self._host.reserve(sequence_id, key):
                self._copy_to_host(block, key)  # there is room, so it is put
                self._host.reserve(sequence_id, key)
        self._swapped += 1
        return whole * size

    def forget(self, sequence_id: int) -> int:
        """Lets go of what was kept for a swapped sequence; answers how many blocks."""
        return self._host.forget(sequence_id)

    # --- the index of the manager (IndexListener) ----------------------------

    def stored(
        self,
        namespace: bytes,
        parent: int | None,
        blocks: Sequence[int],
        token_ids: Sequence[int],
    ) -> None:
        """Notes what blocks contain."""
        self._keys.stored(namespace, parent, blocks, token_ids)

    def removed(self, blocks: Sequence[int]) -> None:
        """Copies blocks to the host before they are overwritten."""
        for block in blocks:
            key = self._keys.removed(block)
            if not self._host.touch(key):
                if self._copy_to_host(block, key):
                    self._spilled += 1
                else:
                    self._unspilled += 1

    def cleared(self, namespace: bytes | None) -> None:
        """Clears the namespace in every tier, and ends its loads."""
        self._keys.cleared(namespace)
        self._loads.cleared(namespace)
        if namespace is None:
            self._host.clear()
        else:
            self._host.drop_namespace(namespace)
        for worker in self._below:
            worker.drop(namespace)

    def moved(self, moves: Sequence[tuple[int, int]]) -> None:
        """Follows blocks to their new ids."""
        self._keys.moved(moves)

    # --- the whole -----------------------------------------------------------

    @property
    def rates(self) -> OffloadRates:
        """Speed of copies, for who plans preemptions."""
        return OffloadRates(self._to_host.per_second, self._loads.rate.per_second)

    def stats(self) -> OffloadStats:
        """Figures of this moment."""
        return OffloadStats(
            spilled_blocks=self._spilled,
            unspilled_blocks=self._unspilled,
            swapped_sequences=self._swapped,
            unswapped_sequences=self._unswapped,
            loaded_blocks=self._loads.loaded_blocks,
            ended_transfers=dict(self._loads.ended),
            open_transfers=len(self._loads),
            refused_transfers=self._loads.refused,
            host=self._host.stats(),
            disk=None if self._disk is None else self._disk.stats(),
            remote=None if self._remote is None else self._remote.stats(),
        )

    def persist(self, seconds: float) -> int:
        """Puts what device and host have to the tiers below, for the next start.

        Takes at most about `seconds`; answers how many blocks were handed on. The most useful
        come first: prefixes before what continues them.
        """
        give_up_at = time.monotonic() + seconds
        handed_on = 0
        for key, payload in self._contents():
            left = give_up_at - time.monotonic()
            if left <= 0:
                break
            handed_on += self._demote(key, payload, left)
        for worker in self._below:
            worker.flush(max(0.0, give_up_at - time.monotonic()))
        return handed_on

    def close(self) -> None:
        """Ends the threads and closes the tiers. The manager must not be used any more then."""
        for worker in self._below:
            worker.close()
        self._host.close()

    def _copy_to_host(self, block: int, key: BlockKey) -> bool:
        started = self._clock()
        is_put = self._host.put(key, self._memory.read(block))
        if is_put:
            self._to_host.add(self._host.block_bytes, self._clock() - started)
        return is_put

    def _contents(self) -> Iterator[tuple[BlockKey, memoryview]]:
        for block, key in self._keys:
            yield key, self._memory.read(block)
        for key in self._host.keys_by_use():
            with self._host.pin([key]) as pin:
                yield key, pin.view(0)

    def _given_up(self, key: BlockKey, payload: memoryview) -> None:
        self._demote(key, payload, wait_seconds=0.0)

    def _demote(self, key: BlockKey, payload: memoryview, wait_seconds: float) -> bool:
        """Whether a tier below has the block, or will have it soon."""
        if self._disk is not None and self._disk.leading_hits([key]):
            return True  # it came from there, or was given up before
        took = [worker.offer(key, payload, wait_seconds) for worker in self._below]
        return any(took)
