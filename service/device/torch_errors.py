"""What an exception of torch says about the device."""

from __future__ import annotations

import re

import torch

from service.device.errors import DeviceLostError, DeviceOutOfMemoryError
from service.device.owner import Owner

# The two allocators put the size into their messages: "you tried to allocate 4096 bytes" on a
# CPU, "Tried to allocate 20.00 MiB" on a GPU.
_WANTED = re.compile(r"tried to allocate (\d+(?:\.\d+)?) (bytes|KiB|MiB|GiB)", re.IGNORECASE)
_UNITS = {"bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
# No type of its own: c10/core/impl/alloc_cpu.cpp raises RuntimeError.
_CPU_OUT_OF_MEMORY = "DefaultCPUAllocator: can't allocate memory"
# What torch makes of an allocation that fails in C++ outside its allocators.
_CPP_OUT_OF_MEMORY = "std::bad_alloc"
# Raised where a library, such as cuBLAS, asks the driver for memory itself.
_LIBRARY_OUT_OF_MEMORY = ("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")
_LIBRARY_FAILURES = ("CUDA error", "CUBLAS_STATUS_", "CUDNN_STATUS_")


def device_error(
    error: BaseException, step_bytes: int
) -> DeviceOutOfMemoryError | DeviceLostError | None:
    """What failed was memory, or the device, or (None) something else.

    Where the message does not say how much memory was wanted, it is what the step was expected
    to take, so that who gives back what was wanted makes room.

    Every CUDA error other than out of memory counts as the loss of the device: most of them
    make each later call of the process fail as well, and none says that it does not.
    """
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or _is_out_of_memory(text):
        told_bytes = _wanted_bytes(text)
        wanted_bytes = step_bytes if told_bytes is None else told_bytes
        return DeviceOutOfMemoryError(Owner.ACTIVATIONS, wanted_bytes, None, None)
    is_lost = isinstance(error, torch.AcceleratorError) or any(
        sign in text for sign in _LIBRARY_FAILURES
    )
    if isinstance(error, RuntimeError) and is_lost:
        return DeviceLostError(text.partition("\n")[0])
    return None


def _is_out_of_memory(text: str) -> bool:
    signs = (_CPU_OUT_OF_MEMORY, _CPP_OUT_OF_MEMORY, *_LIBRARY_OUT_OF_MEMORY)
    return any(sign in text for sign in signs)


def _wanted_bytes(text: str) -> int | None:
    """None: the message does not say."""
    match = _WANTED.search(text)
    return int(float(match[1]) * _UNITS[match[2].lower()]) if match else None
