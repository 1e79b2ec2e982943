"""Brings blocks back from the tiers, step by step beside the engine."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvcache.errors import InvalidArgumentError, UnknownSequenceError
from kvcache.leases import LoadLease
from kvcache.manager import CacheManager
from kvcache.memory import BlockMemory
from kvcache.rates import RateMeter
from kvcache.tiers.host import HostTier
from kvcache.tiers.keys import BlockKey, chain_keys
from kvcache.tiers.transfer import FromHost, FromThread, Source, Transfer, TransferState
from kvcache.tiers.worker import Job, TierWorker


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """How much loading may go on, and for how long."""

    min_blocks: int = 4  # fewer are not worth the trouble: computing them takes less
    lease_seconds: float = 5.0  # after which blocks that were not filled are given to others
    probe_seconds: float = 0.25  # that a remote store gets to say what it has
    max_transfers: int = 16
    staging_bytes: int = 256 * 2**20  # of blocks that threads are reading
    poll_bytes: int = 64 * 2**20  # copied in one call of `poll`: a step waits for them

    def __post_init__(self) -> None:
        for name in ("min_blocks", "max_transfers", "staging_bytes", "poll_bytes"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(name, getattr(self, name), "at least 1")
        for name in ("lease_seconds", "probe_seconds"):
            if not 0 < getattr(self, name) < math.inf:
                raise InvalidArgumentError(name, getattr(self, name), "a finite number above 0")


class Loads:
    """The loads that are under way. Belongs to the thread of the engine.

    Blocks are leased when it is known what there is for them, and threads read into buffers
    of their own; only `poll` writes to the device, after it has seen that the lease is not
    over. So an answer that is lost costs the blocks until the deadline, and one that is late
    cannot reach a block that was given to somebody else.
    """

    def __init__(
        self,
        manager: CacheManager,
        memory: BlockMemory,
        fingerprint: bytes,
        host: HostTier,
        disk: TierWorker | None,
        remote: TierWorker | None,
        limits: LoadLimits,
        clock: Callable[[], float],
    ) -> None:
        self._manager = manager
        self._memory = memory
        self._fingerprint = fingerprint
        self._host = host
        self._disk = disk
        self._remote = remote
        self._limits = limits
        self._clock = clock
        self._open: dict[bytes, Transfer] = {}  # by the digest of the first block they lack
        self._reading: list[FromThread] = []  # buffers that a thread may still write to
        self.rate = RateMeter()
        self.loaded_blocks = 0
        self.refused = 0
        self.ended: Counter[TransferState] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def prefetch(
        self, namespace: bytes, token_ids: NDArray[np.int32], tenant: str
    ) -> Transfer | None:
        """Begins to load what the tiers have beyond the hits of the device; see Offload."""
        size = self._manager.block_tokens
        may_hit = max(0, token_ids.size - 1) // size
        hits = self._manager.lookup(namespace, token_ids) // size
        if may_hit - hits < self._limits.min_blocks:
            return None
        keys = chain_keys(self._fingerprint, namespace, token_ids[: may_hit * size], size)
        same = self._open.get(keys[hits].digest)
        if same is not None:
            same.waiters += 1
            return same
        if len(self._open) >= self._limits.max_transfers:
            self.refused += 1
            return None
        transfer = Transfer(namespace, token_ids, tenant, keys, hits)
        self._open[keys[hits].digest] = transfer
        local = self._local_hits(keys, hits)
        if local < len(keys) and self._remote is not None and self._remote.may_have(namespace):
            transfer.probe = Job(keys[local:])
            transfer.probe_ends_at_seconds = self._clock() + self._limits.probe_seconds
            self._remote.submit(transfer.probe)
        else:
            self._start(transfer, remote=range(0))
        return None if transfer.is_over else transfer

    def cancel(self, transfer: Transfer) -> None:
        """One who waited does so no longer; the last one ends the load."""
        transfer.waiters -= 1
        if transfer.waiters <= 0 and not transfer.is_over:
            self._end(transfer, TransferState.CANCELLED)

    def cleared(self, namespace: bytes | None) -> None:
        """Loads of the namespace come to nothing from now on; `poll` ends them."""
        for transfer in self._open.values():
            if namespace in (None, transfer.namespace):
                transfer.is_cleared = True

    def poll(self) -> int:
        """Goes on with every load; answers the blocks that were written."""
        budget = max(1, self._limits.poll_bytes // self._host.block_bytes)
        left = budget
        started = self._clock()
        for transfer in list(self._open.values()):
            if transfer.is_cleared:
                self._end(transfer, TransferState.CANCELLED)
            elif transfer.state is TransferState.LOOKING:
                self._look(transfer)
            if transfer.state is TransferState.LOADING:
                left -= self._copy(transfer, left)
        self.rate.add((budget - left) * self._host.block_bytes, self._clock() - started)
        self.loaded_blocks += budget - left
        return budget - left

    # --- what there is -------------------------------------------------------

    def _local_hits(self, keys: Sequence[BlockKey], start: int) -> int:
        place = start
        while place < len(keys):
            count = self._host.leading_hits(keys[place:])
            if count == 0 and self._disk is not None:
                count = self._disk.leading_hits(keys[place:])
            if count == 0:
                break
            place += count
        return place

    def _look(self, transfer: Transfer) -> None:
        probe = transfer.probe
        assert probe is not None
        if probe.answer is None and self._clock() < transfer.probe_ends_at_seconds:
            return
        if probe.answer is None and self._remote is not None:
            self._remote.gave_up()
        begin = len(transfer.keys) - len(probe.keys)
        self._start(transfer, remote=range(begin, begin + (probe.answer or 0)))

    def _start(self, transfer: Transfer, remote: range) -> None:
        """Leases blocks for what there is now; `remote` are the places that a store has."""
        size = self._manager.block_tokens
        hits = self._manager.lookup(transfer.namespace, transfer.token_ids) // size
        end = self._collect(transfer, hits, remote)
        if end - hits < self._limits.min_blocks:
            self._end(transfer, TransferState.MISSED)
            return
        transfer.lease = self._lease(transfer, end * size)
        if transfer.lease is None:
            self._end(transfer, TransferState.MISSED)
            return
        transfer.state = TransferState.LOADING

    def _lease(self, transfer: Transfer, tokens: int) -> LoadLease | None:
        namespace, prefix = transfer.namespace, transfer.token_ids[:tokens]
        seconds = self._limits.lease_seconds
        try:
            return self._manager.begin_load(namespace, prefix, seconds, transfer.tenant)
        except InvalidArgumentError:
            # The namespace has become another tenant's since: whoever waits is refused when it
            # is admitted, and nobody else has to know.
            return None

    def _collect(self, transfer: Transfer, start: int, remote: range) -> int:
        """Takes hold of the blocks from `start` on; answers where they end."""
        keys, place = transfer.keys, start
        block_bytes = self._host.block_bytes
        self._reading = [source for source in self._reading if source.ready() is None]
        staged = sum(source.count for source in self._reading)
        room = self._limits.staging_bytes // block_bytes - staged
        while place < len(keys):
            pin = self._host.pin(keys[place:])
            source: Source
            if len(pin) > 0:
                source = FromHost(pin)
            else:
                worker, count = self._beyond_host(keys, place, remote)
                count = min(count, room)
                if worker is None or count <= 0:
                    break
                source = FromThread(worker, keys[place : place + count], block_bytes)
                self._reading.append(source)
                room -= count
            transfer.sources.append(source)
            place += source.count
        return place

    def _beyond_host(
        self, keys: Sequence[BlockKey], place: int, remote: range
    ) -> tuple[TierWorker | None, int]:
        """Which worker has blocks from `place` on, and how many until the host has the next."""
        worker, count = self._disk, 0
        if self._disk is not None:
            count = self._disk.leading_hits(keys[place:])
        if count == 0 and place in remote:
            worker, count = self._remote, remote.stop - place
        ahead = range(place, place + count)
        return worker, next((at - place for at in ahead if keys[at] in self._host), count)

    # --- copying -------------------------------------------------------------

    def _copy(self, transfer: Transfer, limit: int) -> int:
        lease = transfer.lease
        assert lease is not None
        if self._clock() >= lease.expires_at_seconds:
            self._expire(transfer)
            return 0
        try:
            blocks = lease.blocks
        except UnknownSequenceError:
            self._end(transfer, TransferState.EXPIRED)
            return 0
        copied = 0
        while transfer.sources:
            source = transfer.sources[0]
            ready = source.ready()
            if ready is None or copied == limit:
                return copied
            count = min(ready - transfer.taken, limit - copied)
            for place in range(transfer.taken, transfer.taken + count):
                self._memory.write(int(blocks[transfer.copied]), source.view(place))
                transfer.copied += 1
            copied += count
            transfer.taken += count
            if transfer.taken == ready:
                self._close_sources(transfer, count=1 if ready == source.count else None)
        self._publish(transfer, TransferState.DONE if transfer.copied else TransferState.MISSED)
        return copied

    def _expire(self, transfer: Transfer) -> None:
        """Keeps what is there at the deadline; a store that did not answer has failed."""
        for source in transfer.sources:
            if isinstance(source, FromThread) and source.ready() is None:
                source.worker.gave_up()
        self._publish(transfer, TransferState.EXPIRED)

    def _publish(self, transfer: Transfer, state: TransferState) -> None:
        lease = transfer.lease
        assert lease is not None
        tokens = (lease.first_block_index + transfer.copied) * self._manager.block_tokens
        if transfer.copied and self._manager.finish_load(lease.lease_id, tokens):
            transfer.loaded_tokens = tokens
        self._end(transfer, state)

    def _end(self, transfer: Transfer, state: TransferState) -> None:
        if transfer.lease is not None:
            self._manager.end_lease(transfer.lease.lease_id)  # False when it has ended already
        self._close_sources(transfer, count=None)
        transfer.state = state
        self.ended[state] += 1
        del self._open[transfer.keys[transfer.missing_from].digest]

    def _close_sources(self, transfer: Transfer, count: int | None) -> None:
        for source in transfer.sources[:count]:
            source.close()
        del transfer.sources[:count]
        transfer.taken = 0
