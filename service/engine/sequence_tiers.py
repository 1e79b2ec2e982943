"""What the tiers below the pool do for sequences: bring prefixes back, keep victims."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcache.tiers.transfer import TransferState
from service.engine.figures import TierFigures
from service.engine.request import Sequence, SequenceState

if TYPE_CHECKING:
    from kvcache.tiers.offload import Offload
    from kvcache.tiers.transfer import Transfer


class SequenceTiers:
    """Loads and swaps by sequence. Without an `Offload` there is nothing to load or swap to."""

    def __init__(self, block_tokens: int, offload: Offload | None = None) -> None:
        self._block_tokens = block_tokens
        self._offload = offload
        # Of waiting sequences that asked; None: nothing is coming, or no more.
        self._transfers: dict[int, Transfer | None] = {}
        self._returning: set[int] = set()  # of these, sequences that had been preempted
        self._swapped_out_blocks = 0
        self._swapped_in_blocks = 0

    @property
    def is_loading(self) -> bool:
        """Whether a waiting sequence has blocks on their way."""
        return any(load is not None for load in self._transfers.values())

    @property
    def host_room_blocks(self) -> int:
        """Blocks that can be swapped out now."""
        return 0 if self._offload is None else self._offload.host_room_blocks

    @property
    def copy_bytes_per_second(self) -> float | None:
        """Measured speed of copies, the mean of there and back; None while not measured."""
        if self._offload is None:
            return None
        rates = self._offload.rates
        there, back = rates.to_host_bytes_per_second, rates.to_device_bytes_per_second
        if there is None or back is None:
            return there
        return 2.0 / (1.0 / there + 1.0 / back)

    def poll(self) -> bool:
        """To be called once a step: goes on with the loads; whether any were under way."""
        if self._offload is None:
            return False
        self._offload.poll()
        loads = [(number, load) for number, load in self._transfers.items() if load is not None]
        for number, load in loads:
            if load.is_over:
                self._end(number, load)
                self._transfers[number] = None
        return bool(loads)

    def fetch(self, sequence: Sequence) -> bool:
        """Whether a waiting sequence has blocks on their way, which are worth waiting for.

        Asks for them the first time; what has come or failed is not asked for again before
        the sequence has run.
        """
        if self._offload is None:
            return False
        if sequence.sequence_id not in self._transfers:
            spec = sequence.spec
            if sequence.state is SequenceState.PREEMPTED:
                self._returning.add(sequence.sequence_id)
            self._transfers[sequence.sequence_id] = self._offload.prefetch(
                spec.namespace, sequence.token_ids, spec.tenant
            )
        transfer = self._transfers[sequence.sequence_id]
        return transfer is not None and not transfer.is_over

    def give_up_loads(self) -> bool:
        """Ends all loads, so that their blocks are free; whether there were any.

        Those that waited for them are computed instead.
        """
        loads = [(number, load) for number, load in self._transfers.items() if load is not None]
        for number, load in loads:
            self._cancel(load)
            self._end(number, load)
            self._transfers[number] = None
        return bool(loads)

    def swap_out(self, sequence: Sequence) -> bool:
        """Copies a running sequence to the host, before it is preempted; False: no room."""
        if self._offload is None:
            return False
        blocks = self._offload.swap_out(sequence.sequence_id) // self._block_tokens
        self._swapped_out_blocks += blocks
        return blocks > 0

    def let_go(self, sequence: Sequence) -> None:
        """It waits no longer, or runs: ends its loads, and lets go of what was swapped out."""
        if self._offload is None:
            return
        load = self._transfers.pop(sequence.sequence_id, None)
        if load is not None:
            self._cancel(load)
            self._end(sequence.sequence_id, load)
        self._returning.discard(sequence.sequence_id)
        self._offload.forget(sequence.sequence_id)

    def _end(self, sequence_id: int, load: Transfer) -> None:
        """A load is over, and has brought what it has."""
        if sequence_id in self._returning:
            self._swapped_in_blocks += load.copied

    def _cancel(self, load: Transfer) -> None:
        if self._offload is not None and not load.is_over:
            self._offload.cancel(load)

    def figures(self) -> TierFigures | None:
        """Figures of this moment; None without tiers."""
        if self._offload is None:
            return None
        stats = self._offload.stats()
        disk = None if stats.disk is None else stats.disk.tier
        below = [worker for worker in (stats.disk, stats.remote) if worker is not None]
        return TierFigures(
            host_bytes=stats.host.used_bytes or 0,
            host_capacity_bytes=stats.host.capacity_bytes or 0,
            spilled_blocks=stats.spilled_blocks,
            lost_blocks=stats.unspilled_blocks,
            loaded_blocks=stats.loaded_blocks,
            loads=stats.open_transfers,
            expired_loads=stats.ended_transfers.get(TransferState.EXPIRED, 0),
            disk_bytes=0 if disk is None else disk.used_bytes or 0,
            disk_capacity_bytes=0 if disk is None else disk.capacity_bytes or 0,
            dropped_blocks=sum(worker.dropped_blocks for worker in below),
            failures=sum(worker.failures for worker in below),
            swapped_out_blocks=self._swapped_out_blocks,
            swapped_in_blocks=self._swapped_in_blocks,
        )
