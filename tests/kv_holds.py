"""What is held beside sequences, and what concerns the whole pool, each with its prediction.

A tier is played by a shelf: the contents of blocks that left the index, by prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from kv_model import Hold, digests_of
from kv_operations import Sequences
from kv_world import Mirror

from kvcache.errors import InvalidArgumentError, PoolInUseError, UnknownSequenceError
from kvcache.leases import LoadLease, StoreLease
from kvcache.tenants import TenantShare


class Operations(Sequences):
    """All operations of a manager."""

    # --- pins and expectations -----------------------------------------------

    def holdable(self, namespace: bytes, tokens: Sequence[int]) -> list[int]:
        """The cached part of a prefix, if keeping it from eviction takes no floor from others."""
        blocks = self.index.match(namespace, [*tokens, 0])
        tenant = self.tenant_of.get(namespace, "")
        evictable = self.evictable(blocks)
        return blocks if evictable == 0 or evictable <= self.spare(tenant) else []

    def pin(self, namespace: bytes, tokens: Sequence[int], seconds: float) -> int | None:
        """Keeps the cached part of a prefix; None when nothing of it is cached."""
        blocks = self.holdable(namespace, tokens)
        pin = self.manager.pin(namespace, np.array(tokens, np.int32), seconds)
        assert pin.tokens == len(blocks) * self.size
        assert pin.expires_at_seconds == self.now + seconds
        if blocks:
            hold = Hold(namespace, tuple(tokens), blocks, "pin", expires_at=self.now + seconds)
            self.holds["pin", pin.pin_id] = hold
        self.settle()
        return pin.pin_id if blocks else None

    def unpin(self, pin_id: int) -> None:
        was_there = self.holds.pop(("pin", pin_id), None) is not None
        assert self.manager.unpin(pin_id) == was_there
        assert not self.manager.unpin(pin_id)
        self.settle()

    def expect(self, mirror: Mirror) -> None:
        """A waiting request announces what it will hit."""
        self.tenant_of[mirror.namespace] = mirror.tenant
        self.holds.pop(("expect", mirror.sequence_id), None)
        hits = self.hits(mirror)
        assert self.manager.expect(mirror.request()) == len(hits) * self.size
        if hits:
            hold = Hold(mirror.namespace, tuple(mirror.tokens), hits, "expect")
            self.holds["expect", mirror.sequence_id] = hold
        self.settle()

    def unexpect(self, mirror: Mirror) -> None:
        was_there = self.holds.pop(("expect", mirror.sequence_id), None) is not None
        assert self.manager.unexpect(mirror.sequence_id) == was_there
        self.settle()

    # --- transfers -----------------------------------------------------------

    def begin_load(
        self, namespace: bytes, tokens: Sequence[int], seconds: float
    ) -> LoadLease | None:
        """Blocks to be filled behind what is cached; None when there is nothing or no room."""
        tenant = self.tenant_of.get(namespace, "")
        hits = self.index.match(namespace, [*tokens, 0])
        new_blocks = len(tokens) // self.size - len(hits)
        used = self.firmly_held()
        evictable = self.evictable(hits)
        fits = 0 < new_blocks <= self.available(tenant) - evictable
        lease = self.manager.begin_load(
            namespace, np.array(tokens, np.int32), seconds, tenant=tenant
        )
        assert (lease is not None) == fits
        if lease is None:
            self.settle()
            return None
        assert lease.first_block_index == len(hits)
        new = lease.blocks.tolist()
        assert len(new) == new_blocks
        assert not set(new) & used, "a held block was given away"
        self.begin_anew(new)
        hold = Hold(
            namespace,
            tuple(tokens[: (len(hits) + new_blocks) * self.size]),
            [*hits, *new],
            "load",
            new_from=len(hits),
            expires_at=self.now + seconds,
            content=digests_of(tokens, self.index.root(namespace)),
        )
        self.holds["load", lease.lease_id] = hold
        self.settle(new_blocks=new_blocks, tenant=tenant)
        return lease

    def finish_load(self, lease: LoadLease, loaded_blocks: int) -> None:
        """The completion of a transfer of so many blocks: in time, late, or a second time."""
        hold = self.holds.pop(("load", lease.lease_id), None)
        if hold is None:
            with pytest.raises(UnknownSequenceError):
                _ = lease.blocks
            assert not self.manager.finish_load(lease.lease_id, 0)
            self.settle()
            return
        blocks = lease.blocks.tolist()
        assert blocks == hold.blocks[hold.new_from :]
        for number, block in enumerate(blocks[:loaded_blocks], hold.new_from):
            slots = hold.content[number * self.size : (number + 1) * self.size]
            self.memory.write(block, np.array(slots, np.uint64).tobytes())
        loaded_tokens = (hold.new_from + loaded_blocks) * self.size
        assert self.manager.finish_load(lease.lease_id, loaded_tokens)
        self.settle()
        for end in range(self.size, loaded_tokens + 1, self.size):
            if not hold.is_flushed:
                assert (hold.namespace, hold.tokens[:end]) in self.index.block_of, "loaded, lost"

    def begin_store(
        self, namespace: bytes, tokens: Sequence[int], seconds: float
    ) -> StoreLease | None:
        """Keeps a cached prefix unchanged while it is copied out; None when nothing is cached."""
        blocks = self.holdable(namespace, tokens)
        lease = self.manager.begin_store(namespace, np.array(tokens, np.int32), seconds)
        assert (lease is not None) == bool(blocks)
        if lease is not None:
            assert lease.tokens == len(blocks) * self.size
            assert lease.blocks.tolist() == blocks
            hold = Hold(namespace, tuple(tokens), blocks, "store", expires_at=self.now + seconds)
            self.holds["store", lease.lease_id] = hold
        self.settle()
        return lease

    def end_lease(self, kind: str, lease_id: int) -> None:
        was_there = self.holds.pop((kind, lease_id), None) is not None
        assert self.manager.end_lease(lease_id) == was_there
        assert not self.manager.end_lease(lease_id)
        self.settle()

    # --- the whole -----------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Time passes; whatever was held until then is not held any more."""
        self.now += seconds
        assert self.manager.expire() == self.lapse()
        self.settle()

    def advance_unseen(self, seconds: float) -> None:
        """Time passes, and nobody calls `expire`."""
        self.now += seconds
        self.look = self.look_at_cache(self.holders())  # levels may have ended

    def set_share(self, tenant: str, share: TenantShare) -> None:
        """Gives a tenant another floor and quota while requests run."""
        others = (other for name, other in self.shares.items() if name != tenant)
        if sum(other.floor_blocks for other in others) + share.floor_blocks > self.usable:
            with pytest.raises(InvalidArgumentError):
                self.manager.set_share(tenant, share)
        else:
            self.manager.set_share(tenant, share)
            self.shares[tenant] = share
        self.settle()

    def resize(self, usable_blocks: int) -> bool:
        """Makes the pool larger or smaller; False if what is held does not fit."""
        if usable_blocks < sum(share.floor_blocks for share in self.shares.values()):
            with pytest.raises(InvalidArgumentError):
                self.manager.resize(usable_blocks + 1)
            self.settle()
            return False
        self.lapse()
        in_use = len(self.firmly_held())
        before = len(self.index.key_of)
        if usable_blocks < in_use:
            with pytest.raises(PoolInUseError) as caught:
                self.manager.resize(usable_blocks + 1)
            assert (caught.value.wanted_blocks, caught.value.in_use_blocks) == (
                usable_blocks,
                in_use,
            )
            self.settle()
            return False
        self.memory.grow(usable_blocks + 1)
        result = self.manager.resize(usable_blocks + 1)
        self.memory.shrink(usable_blocks + 1)
        assert result.num_blocks == usable_blocks + 1
        assert result.moved_blocks == len(self.index.moves)
        assert result.evicted_blocks == before - len(self.index.key_of)
        needed = self.usable - self.count.free - usable_blocks
        assert result.evicted_blocks <= max(0, needed), "evicted without need"
        self.usable = usable_blocks
        self.settle(is_resize=True)
        return True

    def flush(self, namespace: bytes | None) -> None:
        """Forgets what is cached; who lives keeps its blocks and publishes nothing more."""
        holders = self.holders()
        gone = [b for b, key in self.index.key_of.items() if namespace in (None, key[0])]
        kept = sum(block in holders for block in gone)
        result = self.manager.flush(namespace)
        assert (result.dropped_blocks, result.kept_blocks) == (len(gone) - kept, kept)
        for mirror in self.live.values():
            if namespace in (None, mirror.namespace):
                mirror.publish = False
        for hold in self.holds.values():
            if namespace in (None, hold.namespace):
                hold.is_flushed = True
        self.settle()
