"""The memory behind the pool, on a CPU."""

from __future__ import annotations

import mmap
from types import TracebackType

from kvcache.errors import ArenaError, InvalidArgumentError
from kvcache.layout import KVLayout


class Arena:
    """One private anonymous mapping that holds `num_blocks` blocks, the null block included.

    The pages read as zeros and take real memory when they are first written. Private, not
    shared: a shared anonymous mapping would count against the limit of /dev/shm.

    Raises ArenaError when the operating system refuses the mapping.
    """

    def __init__(self, layout: KVLayout, num_blocks: int) -> None:
        if num_blocks < 2:
            raise InvalidArgumentError(
                "num_blocks", num_blocks, "at least 2 (the null block and one more)"
            )
        self.layout = layout
        self.num_blocks = num_blocks
        try:
            self._map = mmap.mmap(-1, self.size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise ArenaError(self.size_bytes, f"cannot be mapped ({error})") from error
        self._buffer = memoryview(self._map)

    @property
    def size_bytes(self) -> int:
        """Bytes of the blocks; the mapping itself is rounded up to whole pages."""
        return self.num_blocks * self.layout.block_bytes

    @property
    def buffer(self) -> memoryview:
        """Writable bytes of all blocks, in the order of `layout.shape(num_blocks)`."""
        return self._buffer

    def close(self) -> None:
        """Unmaps the memory; a second call does nothing.

        Raises ArenaError while an array or a tensor still views the buffer: unmapping under
        it would turn its next use into a crash.
        """
        try:
            self._buffer.release()
            self._map.close()
        except BufferError as error:
            raise ArenaError(self.size_bytes, "is still viewed by an array") from error

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
