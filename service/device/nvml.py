"""What the NVIDIA driver says of GPUs, through NVML.

What the driver does not tell is None, never 0. That is usual: of a part of a GPU (MIG) and under
WSL much is not supported, old drivers do not know what is reserved, and in a container the driver
may see other process ids than this process does, or none. Tested with nvidia-ml-py over a stub of
the driver's library; nobody has run it on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Answer = TypeVar("Answer")

# nvmlReturn_t in nvml.h: these say that there is no such answer here.
_NOT_TOLD = frozenset(
    {
        2,  # invalid argument: to a driver that does not know this version of a structure
        3,  # not supported
        4,  # no permission: a whole GPU that is cut into parts, asked by one of them
        6,  # not found
        13,  # function not found: a driver older than the function
        25,  # argument version mismatch
    }
)
# There is no driver: its library is missing, or its module is not loaded.
_NO_DRIVER = frozenset({9, 12})


class DriverError(Exception):
    """The driver failed to answer: the GPU is lost, or something else is wrong with it."""


class NoDriver(Exception):
    """There is no driver, or no client of it is installed: no GPU will ever be told of."""


class NvmlProcess(Protocol):
    """A process that computes on the GPU."""

    pid: int
    usedGpuMemory: int | None  # in bytes; None: not available


class NvmlLibrary(Protocol):
    """The functions of `pynvml` (nvidia-ml-py) that are called.

    Its errors have the `value` of nvmlReturn_t.
    """

    NVMLError: type[Exception]
    NVMLLibraryMismatchError: type[Exception]
    nvmlMemory_v2: int

    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any) -> str: ...
    def nvmlDeviceGetIndex(self, handle: Any) -> int: ...
    def nvmlDeviceGetMigMode(self, handle: Any) -> Sequence[int]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any: ...
    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, version: int | None = None) -> Any: ...
    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[NvmlProcess]: ...


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """Memory of a GPU, whoever has it. Where `reserved_bytes` is known, the rest sums to total."""

    total_bytes: int
    used_bytes: int  # by processes; what is reserved included where that is not known apart
    free_bytes: int
    reserved_bytes: int | None  # by driver and firmware; None: an old driver


class GpuDriver:
    """One GPU, or a part of one, as the driver sees it."""

    def __init__(self, library: NvmlLibrary, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def memory(self) -> GpuMemory | None:
        """Of the whole GPU. Raises DriverError."""
        library = self._library
        told = ask(library, library.nvmlDeviceGetMemoryInfo, self._handle, library.nvmlMemory_v2)
        if told is not None:
            return GpuMemory(told.total, told.used, told.free, told.reserved)
        told = ask(library, library.nvmlDeviceGetMemoryInfo, self._handle)
        return None if told is None else GpuMemory(told.total, told.used, told.free, None)

    def utilization(self) -> float | None:
        """Share of the last moments in which a kernel ran, from 0 to 1. Raises DriverError."""
        told = ask(self._library, self._library.nvmlDeviceGetUtilizationRates, self._handle)
        return None if told is None else float(told.gpu) / 100

    def process_bytes(self, process_ids: Collection[int] | None = None) -> int | None:
        """What processes have of the GPU together, contexts included; this one unless given.

        None where the driver knows none of these ids, or does not tell of one. Best effort: in
        a container the ids that it knows may be those of the machine. Raises DriverError.
        """
        wanted = {os.getpid()} if process_ids is None else set(process_ids)
        processes = ask(
            self._library, self._library.nvmlDeviceGetComputeRunningProcesses, self._handle
        )
        found = [p.usedGpuMemory for p in processes or () if p.pid in wanted]
        known = [size_bytes for size_bytes in found if size_bytes is not None]
        return sum(known) if found and len(known) == len(found) else None


def ask(library: NvmlLibrary, function: Callable[..., Answer], *arguments: object) -> Answer | None:
    """What a function of the library answers; None: there is no such answer. Raises DriverError."""
    try:
        return function(*arguments)
    except library.NVMLLibraryMismatchError:  # what pynvml makes of "function not found"
        return None
    except library.NVMLError as error:
        if _code(error) in _NOT_TOLD:
            return None
        raise DriverError(str(error)) from error


def open_library() -> NvmlLibrary:
    """The client of the driver, ready to be asked. Raises NoDriver and DriverError."""
    try:
        import pynvml
    except ImportError as error:
        raise NoDriver("nvidia-ml-py is not installed, see the extra gpu") from error
    library: NvmlLibrary = pynvml
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        if _code(error) in _NO_DRIVER:
            raise NoDriver(str(error)) from error
        raise DriverError(str(error)) from error
    return library


def open_driver(
    uuid: str, open_library: Callable[[], NvmlLibrary] = open_library
) -> GpuDriver | None:
    """The driver's view of the GPU with this id, such as GPU-5c89b0b2-...; None: there is none."""
    try:
        library = open_library()
    except (NoDriver, DriverError):
        return None
    try:
        return GpuDriver(library, library.nvmlDeviceGetHandleByUUID(uuid))
    except library.NVMLError:
        return None


def _code(error: Exception) -> int:
    """Of nvmlReturn_t."""
    return int(getattr(error, "value", -1))
