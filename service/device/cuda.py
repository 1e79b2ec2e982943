"""A GPU as a device: what the driver has, what torch's allocator keeps, what was claimed.

Tested against fakes of torch and of the driver; nobody has run it on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from kvcache.host_memory import available_memory_bytes
from service.device.errors import DeviceOutOfMemoryError
from service.device.memory import MemoryFigures
from service.device.nvml import DriverError, GpuDriver, open_driver
from service.device.owner import OF_ALLOCATOR, Owner

# What is claimed for good, as a part of what torch's allocator reserves.
_OF_TORCH = (Owner.WEIGHTS, Owner.GRAPHS)
# Names of `torch.cuda.memory_stats`.
_RESERVED, _ALLOCATED = "reserved_bytes.all.current", "allocated_bytes.all.current"
_INACTIVE = "inactive_split_bytes.all.current"


class CudaRuntime(Protocol):
    """The functions of `torch.cuda` that are called."""

    def mem_get_info(self, device: int) -> tuple[int, int]:
        """Free and total bytes of the device."""

    def memory_stats(self, device: int) -> Mapping[str, int]:
        """Figures of the caching allocator."""

    def empty_cache(self) -> None:
        """Gives whole segments that nobody uses back to the device."""

    def reset_peak_memory_stats(self, device: int) -> None:
        """Forgets the peak."""

    def synchronize(self, device: int) -> None:
        """Waits until all that was started has been computed."""


class CudaDevice:
    """`DeviceMemory` of one GPU.

    Weights, graphs and activations live in torch's allocator: what it has reserved beyond the
    claims of weights and graphs is of activations. The KV pool is mapped beside it. What the
    driver says this process has beyond both is the context; where it does not say, the context
    is among what nobody claims, `Owner.OTHERS`.
    """

    def __init__(
        self,
        index: int,
        driver: GpuDriver | None,
        runtime: CudaRuntime = torch.cuda,
        available_bytes: Callable[[], int] = available_memory_bytes,
    ) -> None:
        self._index = index
        self._driver = driver
        self._runtime = runtime
        self._available_bytes = available_bytes
        self._claims = dict.fromkeys(Owner, 0)
        self._retries = self._ooms = 0  # of claims: what is not claimed is not asked of torch

    def figures(self) -> MemoryFigures:
        free_bytes, total_bytes = self._runtime.mem_get_info(self._index)
        stats = self._runtime.memory_stats(self._index)
        by_owner = self._owned(stats.get(_RESERVED, 0))
        # A claim is made before it is allocated: it is not free, though the device says so.
        free_bytes = max(0, min(free_bytes, total_bytes - sum(by_owner.values())))
        by_owner[Owner.OTHERS] = total_bytes - free_bytes - sum(by_owner.values())
        return MemoryFigures(
            total_bytes=total_bytes,
            free_bytes=free_bytes,
            by_owner=by_owner,
            reclaimable_bytes=_reclaimable_bytes(stats),
            host_available_bytes=self._available_bytes(),
            allocated_bytes=stats.get(_ALLOCATED, 0),
            reserved_bytes=stats.get(_RESERVED, 0),
            inactive_bytes=stats.get(_INACTIVE, 0),
            allocator_retries=self._retries + stats.get("num_alloc_retries", 0),
            allocator_ooms=self._ooms + stats.get("num_ooms", 0),
        )

    def take(self, owner: Owner, size_bytes: int) -> None:
        if size_bytes < 0:
            raise ValueError(f"size_bytes is {size_bytes}, but must be at least 0")
        figures = self.figures()
        there_bytes = figures.free_bytes
        if owner is Owner.ACTIVATIONS:
            there_bytes += figures.reclaimable_bytes
        if size_bytes > there_bytes:
            self._retries += 1
            self.release_cached()
            figures = self.figures()
            if size_bytes > figures.free_bytes:
                self._ooms += owner in OF_ALLOCATOR
                raise DeviceOutOfMemoryError(
                    owner, size_bytes, figures.free_bytes, figures.total_bytes
                )
        self._claims[owner] += size_bytes

    def give_back(self, owner: Owner, size_bytes: int) -> None:
        if not 0 <= size_bytes <= self._claims[owner]:
            raise ValueError(
                f"{size_bytes} bytes of {owner.value} are given back, "
                f"{self._claims[owner]} were taken"
            )
        self._claims[owner] -= size_bytes

    def release_cached(self) -> int:
        before_bytes = self._reserved_bytes()
        self._runtime.empty_cache()
        return before_bytes - self._reserved_bytes()

    def peak_bytes(self, work: Callable[[], object]) -> int | None:
        """By how much allocated memory rose at most while `work` ran."""
        self._runtime.reset_peak_memory_stats(self._index)
        before_bytes = self._runtime.memory_stats(self._index).get(_ALLOCATED, 0)
        work()
        self._runtime.synchronize(self._index)
        return self._runtime.memory_stats(self._index)["allocated_bytes.all.peak"] - before_bytes

    def _reserved_bytes(self) -> int:
        """What torch's allocator has of the device; it has no figures before its first use."""
        stats = self._runtime.memory_stats(self._index)
        return stats.get(_RESERVED, 0)

    def _owned(self, reserved_bytes: int) -> dict[Owner, int]:
        """All owners but `OTHERS`, which is 0 yet."""
        claims = self._claims
        by_owner = dict.fromkeys(Owner, 0)
        for owner in (*_OF_TORCH, Owner.KV_POOL):
            by_owner[owner] = claims[owner]
        of_torch = sum(claims[owner] for owner in _OF_TORCH)
        by_owner[Owner.ACTIVATIONS] = max(0, reserved_bytes - of_torch)
        process_bytes = self._process_bytes()
        if process_bytes is not None:
            rest_bytes = process_bytes - reserved_bytes - claims[Owner.KV_POOL]
            by_owner[Owner.CONTEXT] = max(0, rest_bytes)
        return by_owner

    def _process_bytes(self) -> int | None:
        """What the driver says that this process has; None: it does not say."""
        if self._driver is None:
            return None
        try:
            return self._driver.process_bytes()
        except DriverError:  # torch will say so, where it matters
            return None


def open_cuda(index: int) -> CudaDevice:
    """The GPU that torch knows by this index, with the driver's view of it where there is one."""
    return CudaDevice(index, open_driver(f"GPU-{torch.cuda.get_device_properties(index).uuid}"))


def _reclaimable_bytes(stats: Mapping[str, int]) -> int:
    """What the allocator could give back: not the unused parts of segments that are in use."""
    return max(
        0,
        stats.get(_RESERVED, 0) - stats.get(_ALLOCATED, 0) - stats.get(_INACTIVE, 0),
    )
