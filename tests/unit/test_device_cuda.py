"""A GPU as a device, over fakes of torch's allocator and of the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from service.device.cuda import CudaDevice
from service.device.errors import DeviceOutOfMemoryError
from service.device.nvml import DriverError
from service.device.owner import Owner


@dataclass
class Driver:
    """What `GpuDriver` says of this process."""

    this_process_bytes: int | None = 0
    is_lost: bool = False

    def process_bytes(self) -> int | None:
        if self.is_lost:
            raise DriverError("GPU is lost")
        return self.this_process_bytes


@dataclass
class Gpu:
    """`torch.cuda` on a device of 1,000 bytes: segments, what is used of them, what others have."""

    others: int = 100
    context: int = 50
    kv_pool: int = 0
    reserved: int = 0
    allocated: int = 0
    split: int = 0
    peak: int = 0
    retries: int = 0
    synchronized: int = 0
    is_used: bool = True  # before its first use the allocator has no figures
    ooms: int = 0
    driver: Driver | None = None

    def mem_get_info(self, _device: int) -> tuple[int, int]:
        return 1000 - self.others - self.context - self.kv_pool - self.reserved, 1000

    def memory_stats(self, _device: int) -> dict[str, int]:
        if not self.is_used:
            return {}
        return {
            "reserved_bytes.all.current": self.reserved,
            "allocated_bytes.all.current": self.allocated,
            "allocated_bytes.all.peak": self.peak,
            "inactive_split_bytes.all.current": self.split,
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
        }

    def empty_cache(self) -> None:
        self.reserved = self.allocated + self.split

    def reset_peak_memory_stats(self, _device: int) -> None:
        self.peak = self.allocated

    def synchronize(self, _device: int) -> None:
        self.synchronized += 1

    def allocate(self, size_bytes: int) -> None:
        self.allocated += size_bytes
        self.reserved = max(self.reserved, self.allocated + self.split)
        self.peak = max(self.peak, self.allocated)

    def device(self) -> CudaDevice:
        driver: Any = self.driver
        return CudaDevice(0, driver, self, available_bytes=lambda: 7)


class TestLedger:
    """Claims, what torch has reserved, and what the driver says."""

    def test_owners_sum_to_what_is_used(self) -> None:
        gpu = Gpu(driver=Driver(300 + 80 + 200 + 50))
        device = gpu.device()
        device.take(Owner.WEIGHTS, 300)
        gpu.allocate(300)
        device.take(Owner.KV_POOL, 200)
        gpu.kv_pool = 200
        gpu.allocate(80)
        gpu.allocated -= 60
        figures = device.figures()
        assert figures.by_owner == {
            Owner.WEIGHTS: 300,
            Owner.KV_POOL: 200,
            Owner.ACTIVATIONS: 80,
            Owner.GRAPHS: 0,
            Owner.CONTEXT: 50,
            Owner.OTHERS: 100,
        }
        assert (figures.total_bytes, figures.free_bytes) == (1000, 270)
        assert (figures.reclaimable_bytes, figures.host_available_bytes) == (60, 7)

    @pytest.mark.parametrize("driver", [None, Driver(None), Driver(is_lost=True)])
    def test_a_context_that_the_driver_does_not_tell_is_of_others(
        self, driver: Driver | None
    ) -> None:
        gpu = Gpu(driver=driver)
        figures = gpu.device().figures()
        assert figures.by_owner[Owner.CONTEXT] == 0
        assert figures.by_owner[Owner.OTHERS] == 150

    def test_a_claim_is_not_free_before_it_is_allocated(self) -> None:
        gpu = Gpu()
        device = gpu.device()
        device.take(Owner.WEIGHTS, 500)
        figures = device.figures()
        assert figures.free_bytes == 500
        assert sum(figures.by_owner.values()) == 500

    def test_before_its_first_use_the_allocator_has_nothing(self) -> None:
        gpu = Gpu(is_used=False)
        device = gpu.device()
        assert device.release_cached() == 0
        assert device.figures().by_owner[Owner.ACTIVATIONS] == 0

        def work() -> None:
            gpu.is_used = True
            gpu.allocate(30)

        assert device.peak_bytes(work) == 30

    def test_parts_of_segments_that_are_in_use_cannot_be_reclaimed(self) -> None:
        gpu = Gpu(reserved=300, allocated=100, split=120)
        device = gpu.device()
        assert device.figures().reclaimable_bytes == 80
        assert device.release_cached() == 80
        assert device.figures().reclaimable_bytes == 0

    @pytest.mark.parametrize("size_bytes", [-1, 101])
    def test_nobody_gives_back_what_he_has_not(self, size_bytes: int) -> None:
        device = Gpu().device()
        device.take(Owner.KV_POOL, 100)
        with pytest.raises(ValueError, match="100 were taken"):
            device.give_back(Owner.KV_POOL, size_bytes)
        with pytest.raises(ValueError, match="at least 0"):
            device.take(Owner.KV_POOL, -1)


class TestTake:
    """What fits."""

    def test_a_step_fits_into_free_and_cached_memory(self) -> None:
        gpu = Gpu(reserved=400)
        device = gpu.device()
        device.take(Owner.ACTIVATIONS, 850)
        assert gpu.reserved == 400, "the allocator finds its way by itself"

    def test_the_pool_needs_free_memory_so_that_the_cache_goes(self) -> None:
        gpu = Gpu(reserved=400, retries=2)
        device = gpu.device()
        device.take(Owner.KV_POOL, 600)
        assert gpu.reserved == 0
        assert device.figures().allocator_retries == 3

    def test_more_than_there_is(self) -> None:
        gpu = Gpu(reserved=400, allocated=100)
        device = gpu.device()
        with pytest.raises(DeviceOutOfMemoryError) as caught:
            device.take(Owner.ACTIVATIONS, 751)
        assert (caught.value.free_bytes, caught.value.total_bytes) == (750, 1000)
        assert device.figures().by_owner[Owner.WEIGHTS] == 0


def test_the_peak_is_that_of_the_work() -> None:
    gpu = Gpu()
    gpu.allocate(700)
    gpu.allocated = 200

    def work() -> None:
        gpu.allocate(90)
        gpu.allocated -= 90

    assert gpu.device().peak_bytes(work) == 90
    assert gpu.synchronized == 1


class TestAllocator:
    """What torch's allocator says of itself, and claims that never reached it."""

    def test_figures_are_those_of_the_allocator(self) -> None:
        device = Gpu(reserved=300, allocated=100, split=120, retries=4, ooms=2).device()
        device.take(Owner.KV_POOL, 200)
        figures = device.figures()
        assert (figures.allocated_bytes, figures.reserved_bytes) == (100, 300)
        assert (figures.inactive_bytes, figures.allocator_ooms) == (120, 2)

    def test_before_its_first_use_all_of_it_is_0(self) -> None:
        figures = Gpu(is_used=False).device().figures()
        assert figures.allocated_bytes == figures.reserved_bytes == figures.inactive_bytes == 0
        assert figures.allocator_retries == figures.allocator_ooms == 0

    @pytest.mark.parametrize(("owner", "ooms"), [(Owner.ACTIVATIONS, 3), (Owner.KV_POOL, 2)])
    def test_a_claim_that_is_refused_counts_if_torch_would_have_allocated_it(
        self, owner: Owner, ooms: int
    ) -> None:
        device = Gpu(ooms=2).device()
        with pytest.raises(DeviceOutOfMemoryError):
            device.take(owner, 10_000)
        figures = device.figures()
        assert (figures.allocator_retries, figures.allocator_ooms) == (1, ooms)
