"""A range of virtual addresses whose pages get memory and give it back. Linux.

Addresses are reserved once with no access rights, so that whoever views the range keeps
valid pointers while its size in memory changes. A page without memory has no access
rights: touching it is a fault (SIGSEGV), never a silent read of nothing.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import weakref
from collections.abc import Callable

PAGE_BYTES = mmap.PAGESIZE

_PROT_NONE = 0
_MAP_NORESERVE = 0x4000  # the two that Python 3.11 does not name
_MADV_POPULATE_WRITE = 23
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


def round_up_to_page(size_bytes: int) -> int:
    """The smallest multiple of the page size that holds `size_bytes`."""
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


class AddressSpace:
    """`size_bytes` of private addresses, rounded up to whole pages, at first without memory.

    Offsets are bytes from the first address and multiples of `PAGE_BYTES`. The addresses
    live until the last view of the buffer is gone. Raises OSError when the operating system
    refuses, and OverflowError for a size that no address has.
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = round_up_to_page(size_bytes)
        view_type = ctypes.c_ubyte * self.size_bytes
        address = _libc.mmap(
            None,
            self.size_bytes,
            _PROT_NONE,
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE,
            -1,
            0,
        )
        if address == _MAP_FAILED:
            raise _last_error()
        self._address: int = address
        array = view_type.from_address(address)
        # Not at exit: what is still viewed then may still be used, and the system cleans up.
        weakref.finalize(array, _libc.munmap, address, self.size_bytes).atexit = False
        self.buffer = memoryview(array).cast("B")

    def commit(self, start: int, end: int) -> None:
        """Lets [start, end) be read and written; pages get memory when first written, as zeros."""
        self._call(_libc.mprotect, start, end, mmap.PROT_READ | mmap.PROT_WRITE)

    def populate(self, start: int, end: int) -> None:
        """Gives the committed range [start, end) its memory now, not at the first write.

        The system's OOM killer comes for a range that does not fit: check before. A kernel
        older than 5.14 cannot do it; there the first write still does.
        """
        try:
            self._call(_libc.madvise, start, end, _MADV_POPULATE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise

    def release(self, start: int, end: int) -> None:
        """Takes memory and access rights of [start, end) back."""
        self._call(_libc.mprotect, start, end, _PROT_NONE)
        self._call(_libc.madvise, start, end, mmap.MADV_DONTNEED)

    def present_bytes(self, start: int, end: int) -> int:
        """Bytes of [start, end) that have memory; 0.6 ms for every GiB that is looked at."""
        if start == end:
            return 0
        present = bytearray((end - start) // PAGE_BYTES)
        view = (ctypes.c_ubyte * len(present)).from_buffer(present)
        if _libc.mincore(self._address + start, end - start, view) != 0:
            raise _last_error()
        return present.count(1) * PAGE_BYTES

    def _call(
        self, function: Callable[[int, int, int], int], start: int, end: int, how: int
    ) -> None:
        if start < end and function(self._address + start, end - start, how) != 0:
            raise _last_error()


def _last_error() -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))
