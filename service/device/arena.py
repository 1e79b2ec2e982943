"""The arena of the KV pool as a tenant of the device: growth is claimed before it is made."""

from __future__ import annotations

from kvcache import Arena, KVLayout
from kvcache.errors import MemoryShortError
from service.device.errors import DeviceOutOfMemoryError
from service.device.memory import DeviceMemory
from service.device.owner import Owner


class DeviceArena:
    """A `kvcache.Arena` whose bytes are those of `Owner.KV_POOL`; blocks count the null block.

    Growing leaves `headroom_bytes` of the device to the steps of the model.
    """

    def __init__(self, arena: Arena, device: DeviceMemory, headroom_bytes: int) -> None:
        """Claims the blocks that the arena has; raises DeviceOutOfMemoryError."""
        device.take(Owner.KV_POOL, arena.size_bytes)
        self.arena = arena
        self._device = device
        self._headroom_bytes = headroom_bytes

    @property
    def layout(self) -> KVLayout:
        """Of one block."""
        return self.arena.layout

    @property
    def num_blocks(self) -> int:
        """Blocks that have memory."""
        return self.arena.num_blocks

    @property
    def max_blocks(self) -> int:
        """Blocks that have addresses."""
        return self.arena.max_blocks

    def require_memory(self, num_blocks: int) -> None:
        """Raises MemoryShortError when growing to `num_blocks` would, as things are now."""
        wanted_bytes = (num_blocks - self.num_blocks) * self.layout.block_bytes
        if wanted_bytes > 0:
            self._require_bytes(wanted_bytes)
            self.arena.require_memory(num_blocks)

    def grow(self, num_blocks: int) -> None:
        """Claims the blocks up to `num_blocks` and gives them memory.

        Raises MemoryShortError, and changes nothing, when the device or the host has too
        little.
        """
        wanted_bytes = (num_blocks - self.num_blocks) * self.layout.block_bytes
        self._require_bytes(wanted_bytes)
        try:
            self._device.take(Owner.KV_POOL, wanted_bytes)
        except DeviceOutOfMemoryError as error:
            raise self._short(wanted_bytes, error.free_bytes or 0) from error
        try:
            self.arena.grow(num_blocks)
        except BaseException:
            self._device.give_back(Owner.KV_POOL, wanted_bytes)
            raise

    def shrink(self, num_blocks: int) -> None:
        """Gives the memory of the last blocks back to the device."""
        freed_bytes = (self.num_blocks - num_blocks) * self.layout.block_bytes
        self.arena.shrink(num_blocks)
        self._device.give_back(Owner.KV_POOL, freed_bytes)

    def _require_bytes(self, wanted_bytes: int) -> None:
        available_bytes = self._device.figures().headroom_bytes
        if wanted_bytes + self._headroom_bytes > available_bytes:
            raise self._short(wanted_bytes, available_bytes)

    def _short(self, wanted_bytes: int, available_bytes: int) -> MemoryShortError:
        return MemoryShortError(
            self.arena.size_bytes, wanted_bytes, available_bytes, self._headroom_bytes
        )
