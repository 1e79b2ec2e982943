"""The memory behind the pool, on a CPU: reserved once, grown and shrunk at its end."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from kvcache.address_space import AddressSpace, round_up_to_page
from kvcache.errors import ArenaError, InvalidArgumentError, MemoryShortError
from kvcache.host_memory import available_memory_bytes
from kvcache.layout import KVLayout

# Growing leaves this much to the steps of the model, which take memory as they run.
HEADROOM_BYTES = 128 << 20
# Between two chunks of a growing pool the memory that is left is looked at again.
_CHUNK_BYTES = 64 << 20


class Arena:
    """Addresses for `max_blocks` blocks, of which the first `num_blocks` have memory.

    Both count the null block; `max_blocks` None is `num_blocks`. The block-major layout makes
    any number of first blocks one range, so growing and shrinking move one boundary, and
    arrays that view `buffer` stay valid. The initial blocks read as zeros and take real
    memory when they are first written; it is the caller who knows that they fit.

    Raises ArenaError when the operating system refuses the addresses.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        max_blocks: int | None = None,
        *,
        available_bytes: Callable[[], int] = available_memory_bytes,
    ) -> None:
        """`available_bytes` tells how much more memory this process may take."""
        if num_blocks < 2:
            raise InvalidArgumentError(
                "num_blocks", num_blocks, "at least 2 (the null block and one more)"
            )
        if max_blocks is not None and max_blocks < num_blocks:
            raise InvalidArgumentError("max_blocks", max_blocks, f"at least {num_blocks}")
        self.layout = layout
        self.num_blocks = num_blocks
        self.max_blocks = num_blocks if max_blocks is None else max_blocks
        self._available_bytes = available_bytes
        self._written_end = 0  # all pages before it have memory
        reserved_bytes = self.max_blocks * layout.block_bytes
        try:
            self._space = AddressSpace(reserved_bytes)
            self._space.commit(0, self._end(num_blocks))
        except (OSError, OverflowError) as error:
            raise ArenaError(reserved_bytes, f"cannot be mapped ({error})") from error
        self._buffer = self._space.buffer[:reserved_bytes]

    @property
    def size_bytes(self) -> int:
        """Bytes of the present blocks; their memory is rounded up to whole pages."""
        return self.num_blocks * self.layout.block_bytes

    def promised_bytes(self) -> int:
        """Bytes of the present blocks that have no memory yet: nobody has written to them.

        Low blocks are used first, so that the start of the arena soon has all its memory and
        needs no second look.
        """
        end, promised = self._end(self.num_blocks), 0
        for start in range(self._written_end, end, _CHUNK_BYTES):
            chunk_end = min(end, start + _CHUNK_BYTES)
            missing = chunk_end - start - self._space.present_bytes(start, chunk_end)
            if not missing and start == self._written_end:
                self._written_end = chunk_end
            promised += missing
        return promised

    @property
    def buffer(self) -> memoryview:
        """Writable bytes of `max_blocks` blocks, in the order of `layout.shape(max_blocks)`.

        Only the first `size_bytes` may be touched: behind them a read or a write ends the
        process with SIGSEGV.
        """
        return self._buffer

    def require_memory(self, num_blocks: int) -> None:
        """Raises MemoryShortError when growing to `num_blocks` would, as things are now."""
        wanted_bytes = self._end(num_blocks) - self._end(self.num_blocks)
        if wanted_bytes > 0:
            self._require_bytes(wanted_bytes)

    def grow(self, num_blocks: int) -> None:
        """Gives the blocks up to `num_blocks` memory, at once and as zeros.

        Raises MemoryShortError, and changes nothing, when the machine or the control group
        has less than that and `HEADROOM_BYTES` left, or the system gives none at all.
        """
        if not self.num_blocks <= num_blocks <= self.max_blocks:
            limit = f"from {self.num_blocks} to {self.max_blocks}"
            raise InvalidArgumentError("num_blocks", num_blocks, limit)
        start, end = self._end(self.num_blocks), self._end(num_blocks)
        committed = start
        try:
            while committed < end:
                self._require_bytes(end - committed)
                chunk_start, committed = committed, min(end, committed + _CHUNK_BYTES)
                self._space.commit(chunk_start, committed)
                self._space.populate(chunk_start, committed)
        except (MemoryShortError, OSError) as error:
            self._space.release(start, committed)
            if isinstance(error, MemoryShortError):
                raise
            raise MemoryShortError(self.size_bytes, end - start, 0, HEADROOM_BYTES) from error
        self.num_blocks = num_blocks

    def shrink(self, num_blocks: int) -> None:
        """Gives the memory of the blocks from `num_blocks` on, and what is in it, back.

        Who holds one of these blocks must have moved it away before.
        """
        if not 2 <= num_blocks <= self.num_blocks:
            limit = f"from 2 to {self.num_blocks}"
            raise InvalidArgumentError("num_blocks", num_blocks, limit)
        start, end = self._end(num_blocks), self._end(self.num_blocks)
        self._space.release(start, end)
        self._written_end = min(self._written_end, start)
        # The page at the boundary stays; what is in it behind the last block must not come
        # back as the content of a new one.
        first_gone = num_blocks * self.layout.block_bytes
        last_kept = min(start, self.size_bytes)
        self._buffer[first_gone:last_kept] = bytes(last_kept - first_gone)
        self.num_blocks = num_blocks

    def close(self) -> None:
        """Lets go of the memory; a second call does nothing.

        It is unmapped once the last array or tensor that views `buffer` is gone, not under it:
        that would turn the next use into a crash.
        """
        self._buffer = self._space.buffer = memoryview(b"")

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _end(self, num_blocks: int) -> int:
        return round_up_to_page(num_blocks * self.layout.block_bytes)

    def _require_bytes(self, wanted_bytes: int) -> None:
        available = self._available_bytes()
        if wanted_bytes + HEADROOM_BYTES > available:
            raise MemoryShortError(self.size_bytes, wanted_bytes, available, HEADROOM_BYTES)
