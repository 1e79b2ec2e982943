"""The GPUs that this process and its engine may use, as CUDA_VISIBLE_DEVICES says.

See the CUDA C++ Programming Guide, "CUDA environment variables". An index is taken for that of
the driver, as nvidia-smi counts: CUDA counts the same unless GPUs of several kinds are in the
machine and CUDA_DEVICE_ORDER is not PCI_BUS_ID. A GPU that is cut into parts (MIG) stands for all
of its parts that this container sees, of which CUDA uses the first. Both are looked up once: who
cuts a GPU anew starts the server anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from service.device.nvml import GpuDriver, NvmlLibrary, ask

_MIG_ENABLED = 1  # NVML_DEVICE_MIG_ENABLE


@dataclass(frozen=True, slots=True)
class VisibleGpu:
    """A GPU, or a part of one."""

    label: str  # as nvidia-smi counts: 0, of a part 0:1
    driver: GpuDriver


def visible_gpus(library: NvmlLibrary, visible_devices: str | None) -> list[VisibleGpu]:
    """Those that the value of CUDA_VISIBLE_DEVICES leaves; None: it is not set. Raises DriverError.

    As with CUDA, the first entry that means no GPU hides itself and all that follow.
    """
    if visible_devices is None:
        handles = list(_all_handles(library))
    else:
        handles = list(_chosen_handles(library, visible_devices))
    gpus: dict[str, VisibleGpu] = {}
    for handle in handles:
        for label, part in _parts(library, handle):
            gpus.setdefault(label, VisibleGpu(label, GpuDriver(library, part)))
    return list(gpus.values())


def _all_handles(library: NvmlLibrary) -> Iterator[Any]:
    for index in range(ask(library, library.nvmlDeviceGetCount) or 0):
        handle = ask(library, library.nvmlDeviceGetHandleByIndex, index)
        if handle is not None:
            yield handle


def _chosen_handles(library: NvmlLibrary, visible_devices: str) -> Iterator[Any]:
    for entry in visible_devices.split(","):
        handle = _chosen_handle(library, entry.strip())
        if handle is None:
            return
        yield handle


def _chosen_handle(library: NvmlLibrary, entry: str) -> Any | None:
    """None: the entry means no GPU."""
    if entry.isdecimal():
        return ask(library, library.nvmlDeviceGetHandleByIndex, int(entry))
    if entry.startswith("MIG-"):
        return ask(library, library.nvmlDeviceGetHandleByUUID, entry)
    if not entry.startswith("GPU-"):
        return None
    # The beginning of an id will do, if there is only one such GPU.
    fitting = [
        handle
        for handle in _all_handles(library)
        if (ask(library, library.nvmlDeviceGetUUID, handle) or "").startswith(entry)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _parts(library: NvmlLibrary, handle: Any) -> Iterator[tuple[str, Any]]:
    """The GPU or the part with its label; of a GPU that is cut, its parts instead."""
    index = ask(library, library.nvmlDeviceGetIndex, handle)
    whole = ask(library, library.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
    if whole is not None:
        yield f"{ask(library, library.nvmlDeviceGetIndex, whole)}:{index}", handle
        return
    mode = ask(library, library.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != _MIG_ENABLED:
        yield str(index), handle
        return
    for number in range(ask(library, library.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = ask(library, library.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if part is not None:
            yield f"{index}:{number}", part
