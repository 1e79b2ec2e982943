"""The host tier: blocks in memory of this process, the first stop of what leaves the device."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from kvcache.errors import InvalidArgumentError
from kvcache.tiers.entry import Buffer
from kvcache.tiers.keys import BlockKey
from kvcache.tiers.tier import TierError, TierStats

# Called with a block that is about to be overwritten; the view is void afterwards.
Evicted = Callable[[BlockKey, memoryview], None]


@dataclass(slots=True, eq=False)
class _Entry:
    key: BlockKey
    slot: int
    pins: int = 0
    owners: set[int] = field(default_factory=set)  # swapped sequences that it is kept for
    is_dropped: bool = False  # the index forgot it, a pin still reads it

    @property
    def is_kept(self) -> bool:
        return self.pins > 0 or bool(self.owners)


class HostPin:
    """Leading blocks of a lookup that are not evicted until it is closed; closing is idempotent.

    A scoped object, so that a lookup that nothing comes of cannot leave a pin behind: close it,
    or use it in a `with` statement.
    """

    __slots__ = ("_entries", "_tier")

    def __init__(self, tier: HostTier, entries: list[_Entry]) -> None:
        self._tier = tier
        self._entries = entries

    def __len__(self) -> int:
        return len(self._entries)

    def view(self, place: int) -> memoryview:
        """The bytes of the block at this place; void once the pin is closed."""
        self._tier._read_blocks += 1
        return self._tier._view(self._entries[place].slot)

    def close(self) -> None:
        """Lets go of the blocks."""
        entries, self._entries = self._entries, []
        self._tier._unpin(entries)

    def __enter__(self) -> HostPin:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class HostTier:
    """A bounded number of slots of one block each, the least recently used given up first.

    The slots are one private mapping, whose pages take memory when first written. Every
    operation but `drop_namespace` and `clear` is O(1) a block. Unlike other tiers it belongs
    to one thread, that of the engine: its reads are copies that the engine makes itself.

    Blocks of a lookup that is under way (`pin`) and of swapped sequences (`reserve`) are
    not given up. When only such are left a put is refused: whoever swaps falls back to
    recomputing, nobody is aborted.

    `evicted` is told of every block before it is overwritten. Raises InvalidArgumentError for
    sizes below 1, and TierError when the mapping is refused.
    """

    name = "host"

    def __init__(
        self, block_bytes: int, capacity_bytes: int, evicted: Evicted | None = None
    ) -> None:
        if block_bytes < 1:
            raise InvalidArgumentError("block_bytes", block_bytes, "at least 1")
        if capacity_bytes < block_bytes:
            limit = f"at least {block_bytes} (one block)"
            raise InvalidArgumentError("capacity_bytes", capacity_bytes, limit)
        self.block_bytes = block_bytes
        self.num_slots = capacity_bytes // block_bytes
        self.evicted = evicted
        try:
            self._map = mmap.mmap(
                -1, self.num_slots * block_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        except (OSError, OverflowError) as error:
            size = self.num_slots * block_bytes
            raise TierError(self.name, f"{size} bytes cannot be mapped ({error})") from error
        self._slab = memoryview(self._map)
        self._free = list(range(self.num_slots - 1, -1, -1))
        self._entries: dict[bytes, _Entry] = {}
        self._evictable: OrderedDict[bytes, _Entry] = OrderedDict()  # least recently used first
        self._owned: dict[int, dict[bytes, _Entry]] = {}
        self._pins = 0
        self._read_blocks = self._written_blocks = self._evicted_blocks = 0

    # --- lookups -------------------------------------------------------------

    def __contains__(self, key: BlockKey) -> bool:
        return self._find(key) is not None

    def leading_hits(self, keys: Sequence[BlockKey]) -> int:
        """How many of the first keys are here."""
        hits = 0
        while hits < len(keys) and self._find(keys[hits]) is not None:
            hits += 1
        return hits

    def pin(self, keys: Sequence[BlockKey]) -> HostPin:
        """Looks the leading keys up and keeps what is found from being evicted."""
        entries = []
        for key in keys:
            entry = self._find(key)
            if entry is None:
                break
            entry.pins += 1
            self._evictable.pop(key.digest, None)
            entries.append(entry)
        self._pins += len(entries)
        return HostPin(self, entries)

    def read(self, keys: Sequence[BlockKey], into: Sequence[memoryview]) -> int:
        """Copies leading blocks; answers how many."""
        with self.pin(keys) as pin:
            for place in range(len(pin)):
                into[place][:] = pin.view(place)
            return len(pin)

    # --- changes -------------------------------------------------------------

    def put(self, key: BlockKey, payload: Buffer) -> bool:
        """Stores one block, or marks it as used if it is here; False: every slot is kept."""
        if len(payload) != self.block_bytes:
            limit = f"{self.block_bytes} bytes (one block)"
            raise InvalidArgumentError("payload", f"{len(payload)} bytes", limit)
        if key.digest in self._entries:
            return self.touch(key)
        if not self._free and not self._evict():
            return False
        entry = _Entry(key, self._free.pop())
        self._view(entry.slot)[:] = payload
        self._entries[key.digest] = self._evictable[key.digest] = entry
        self._written_blocks += 1
        return True

    def touch(self, key: BlockKey) -> bool:
        """Marks a block as used just now; False if it is not here."""
        entry = self._find(key)
        if entry is not None and not entry.is_kept:
            self._evictable.move_to_end(key.digest)
        return entry is not None

    def reserve(self, owner: int, key: BlockKey) -> bool:
        """Keeps a block that is here for a swapped sequence; False if it is not here."""
        entry = self._find(key)
        if entry is None:
            return False
        entry.owners.add(owner)
        self._owned.setdefault(owner, {})[key.digest] = entry
        self._evictable.pop(key.digest, None)
        return True

    def forget(self, owner: int) -> int:
        """Lets go of what was kept for a swapped sequence; answers how many blocks.

        They stay as long as nothing else needs their slots.
        """
        entries = self._owned.pop(owner, {})
        for entry in reversed(entries.values()):  # the first block is used by most: evict it last
            entry.owners.discard(owner)
            self._settle(entry)
        return len(entries)

    def drop_namespace(self, namespace: bytes) -> None:
        """Forgets the blocks of one namespace, the reserved ones too."""
        for entry in [e for e in self._entries.values() if e.key.namespace == namespace]:
            self._drop(entry)

    def clear(self) -> None:
        """Forgets all blocks, the reserved ones too."""
        for entry in list(self._entries.values()):
            self._drop(entry)

    # --- figures -------------------------------------------------------------

    @property
    def pinned_blocks(self) -> int:
        """Pins on blocks by lookups that are not closed."""
        return self._pins

    def has_room_for(self, keys: Sequence[BlockKey]) -> bool:
        """Whether all of these can be here at once, with what has to be kept."""
        entries = (self._find(key) for key in keys)
        new = sum(1 for entry in entries if entry is None or not entry.is_kept)
        return new <= self.room_blocks

    @property
    def room_blocks(self) -> int:
        """Blocks that can be put: free slots, and those whose blocks can be evicted."""
        return len(self._free) + len(self._evictable)

    def keys_by_use(self) -> list[BlockKey]:
        """Keys of the evictable blocks, the most recently used first."""
        return [entry.key for entry in reversed(self._evictable.values())]

    def stats(self) -> TierStats:
        """Figures of this moment, O(1)."""
        return TierStats(
            entries=len(self._entries),
            used_bytes=(self.num_slots - len(self._free)) * self.block_bytes,
            capacity_bytes=self.num_slots * self.block_bytes,
            read_blocks=self._read_blocks,
            written_blocks=self._written_blocks,
            evicted_blocks=self._evicted_blocks,
            faults={},
        )

    def close(self) -> None:
        """Unmaps the memory. Raises BufferError while somebody still views a block."""
        self._slab.release()
        self._map.close()

    # --- mechanism -----------------------------------------------------------

    def _find(self, key: BlockKey) -> _Entry | None:
        entry = self._entries.get(key.digest)
        return entry if entry is not None and entry.key == key else None

    def _evict(self) -> bool:
        if not self._evictable:
            return False
        _, entry = self._evictable.popitem(last=False)
        if self.evicted is not None:
            self.evicted(entry.key, self._view(entry.slot))
        del self._entries[entry.key.digest]
        self._free.append(entry.slot)
        self._evicted_blocks += 1
        return True

    def _unpin(self, entries: list[_Entry]) -> None:
        self._pins -= len(entries)
        for entry in reversed(entries):  # the first block is used by most: evict it last
            entry.pins -= 1
            self._settle(entry)

    def _settle(self, entry: _Entry) -> None:
        if entry.is_kept:
            return
        if entry.is_dropped:
            self._free.append(entry.slot)
        else:
            self._evictable[entry.key.digest] = entry

    def _drop(self, entry: _Entry) -> None:
        del self._entries[entry.key.digest]
        self._evictable.pop(entry.key.digest, None)
        for owner in entry.owners:
            del self._owned[owner][entry.key.digest]
            if not self._owned[owner]:
                del self._owned[owner]
        entry.owners.clear()
        entry.is_dropped = True
        self._settle(entry)

    def _view(self, slot: int) -> memoryview:
        return self._slab[slot * self.block_bytes : (slot + 1) * self.block_bytes]
