"""What the NVIDIA driver says of a GPU, through NVML.

The figures of processes are best effort: in a container the driver may see other process ids
than this process does, and on a part of a GPU (MIG) or under some drivers there are none. What
is not known is None, never 0. Tested against a fake of the library; nobody has run it on a GPU.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Protocol


class NvmlProcess(Protocol):
    """A process that computes on the GPU."""

    pid: int
    usedGpuMemory: int | None  # in bytes; None: not available


class NvmlLibrary(Protocol):
    """The functions of `pynvml` (nvidia-ml-py) that are called."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...
    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Any: ...
    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> Sequence[NvmlProcess]: ...


class GpuDriver:
    """One GPU as the driver sees it."""

    def __init__(self, library: NvmlLibrary, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def process_bytes(self, pid: int | None = None) -> int | None:
        """What a process has of the GPU, its context included; this one unless `pid` is given.

        None where the driver does not tell, or does not know the process by this id.
        """
        wanted = os.getpid() if pid is None else pid
        try:
            processes = self._library.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except self._library.NVMLError:
            return None
        for process in processes:
            if process.pid == wanted:
                return process.usedGpuMemory
        return None


def open_driver(uuid: str, library: NvmlLibrary | None = None) -> GpuDriver | None:
    """The driver's view of the GPU with this id, such as GPU-5c89b0b2-...; None: there is none.

    `library` is `pynvml` unless given; without it, or without a driver, nothing is known.
    """
    if library is None:
        try:
            import pynvml
        except ImportError:
            return None
        library = pynvml
    try:
        library.nvmlInit()
        return GpuDriver(library, library.nvmlDeviceGetHandleByUUID(uuid))
    except library.NVMLError:
        return None
