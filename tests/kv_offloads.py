"""A host tier below the device, each of its operations with its prediction."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from kv_holds import Operations
from kv_model import Hold
from kv_world import Mirror

from kvcache.tiers import HostTier, LoadLimits, Offload, Transfer

_FINGERPRINT = bytes(32)
LEASE_SECONDS = 3.0


class TieredOperations(Operations):
    """Spills, swaps and loads beside everything else. Loads take several polls."""

    offload: Offload

    def add_host(self, host_blocks: int, blocks_a_poll: int) -> None:
        block_bytes = self.size * 8
        self.offload = Offload(
            self.manager,
            self.memory,
            _FINGERPRINT,
            HostTier(block_bytes, host_blocks * block_bytes),
            limits=LoadLimits(
                min_blocks=1,
                lease_seconds=LEASE_SECONDS,
                poll_bytes=blocks_a_poll * block_bytes,
            ),
            clock=lambda: self.now,
        )
        self.transfers: list[Transfer] = []

    def prefetch(self, namespace: bytes, tokens: Sequence[int]) -> Transfer | None:
        """Begins to load what the host has beyond the hits of the device."""
        tenant = self.tenant_of.get(namespace, "")
        hits = self.index.match(namespace, tokens)
        transfer = self.offload.prefetch(namespace, np.array(tokens, np.int32), tenant)
        if transfer is None or transfer in self.transfers:
            self.settle()  # nothing there, no room, or one that is under way
            return transfer
        lease = transfer.lease
        assert lease is not None
        self.transfers.append(transfer)
        assert lease.first_block_index == len(hits)
        new = lease.blocks.tolist()
        self.begin_anew(new)
        hold = Hold(
            namespace,
            tuple(tokens[: (len(hits) + len(new)) * self.size]),
            [*hits, *new],
            "load",
            new_from=len(hits),
            expires_at=self.now + LEASE_SECONDS,
        )
        self.holds["load", lease.lease_id] = hold
        self.settle(new_blocks=len(new), tenant=tenant)
        return transfer

    def poll(self) -> None:
        """Goes on with the loads; what came in is compared when it is published."""
        self.offload.poll()
        for transfer in self.transfers:
            if transfer.is_over and transfer.lease is not None:
                self.holds.pop(("load", transfer.lease.lease_id), None)
        self.transfers = [transfer for transfer in self.transfers if not transfer.is_over]
        self.lapse()
        self.settle()

    def cancel(self, transfer: Transfer) -> None:
        """A request that waited for a load is gone."""
        self.offload.cancel(transfer)
        if transfer.is_over and transfer.lease is not None:
            self.holds.pop(("load", transfer.lease.lease_id), None)
        self.settle()

    def swap(self, mirror: Mirror) -> int:
        """Preempts a sequence whose blocks stay in the host, if that has room for them."""
        whole = mirror.computed // self.size * self.size
        kept = self.offload.swap_out(mirror.sequence_id)
        assert kept in (0, whole)
        self.preempt(mirror, keep_blocks=0, swapped=kept > 0)
        return kept
