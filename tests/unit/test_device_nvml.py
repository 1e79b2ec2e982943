"""The client of the driver, nvidia-ml-py below it, over a stub of the driver's library."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pynvml
import pytest
from nvml_stub import COMPILER, GIB, STATE_VARIABLE, NvmlStub, StubGpu

from service.device.nvml import (
    DriverError,
    GpuDriver,
    GpuMemory,
    NoDriver,
    NvmlLibrary,
    open_driver,
    open_library,
)
from service.device.visible_gpus import visible_gpus

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C compiler")

MEMORY_V2, MEMORY_V1 = "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3"
UTILIZATION = "nvmlDeviceGetUtilizationRates"
NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST, UNKNOWN = 3, 13, 15, 999


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> NvmlStub:
    stub = NvmlStub(tmp_path_factory.mktemp("nvml"))
    stub.load_here()
    return stub


@pytest.fixture
def stub(library: NvmlStub, monkeypatch: pytest.MonkeyPatch) -> Iterator[NvmlStub]:
    monkeypatch.setenv(STATE_VARIABLE, str(library.state))
    yield library
    library.end()


def opened(stub: NvmlStub, *gpus: StubGpu) -> NvmlLibrary:
    stub.tell(*gpus)
    return open_library()


def first_gpu(stub: NvmlStub, *gpus: StubGpu) -> GpuDriver:
    return visible_gpus(opened(stub, *(gpus or (StubGpu(),))), None)[0].driver


class TestMemory:
    """Of a whole GPU."""

    def test_it_is_that_of_the_moment_and_adds_up(self, stub: NvmlStub) -> None:
        driver = first_gpu(stub)
        for used_gib in (0, 40, 79):
            stub.tell(StubGpu(used_bytes=used_gib * GIB))
            memory = driver.memory()
            assert memory == GpuMemory(80 * GIB, used_gib * GIB, (79 - used_gib) * GIB, GIB)

    @pytest.mark.parametrize("code", [NOT_SUPPORTED, FUNCTION_NOT_FOUND, 2, 25])
    def test_an_old_driver_does_not_tell_what_is_reserved(self, stub: NvmlStub, code: int) -> None:
        driver = first_gpu(stub)
        stub.tell(StubGpu(used_bytes=40 * GIB), errors=[(MEMORY_V2, code)])
        assert driver.memory() == GpuMemory(80 * GIB, 41 * GIB, 39 * GIB, None)

    def test_where_nothing_is_supported_nothing_is_told(self, stub: NvmlStub) -> None:
        driver = first_gpu(stub)
        functions = (MEMORY_V1, MEMORY_V2, PROCESSES, UTILIZATION)
        stub.tell(StubGpu(), errors=[(function, NOT_SUPPORTED) for function in functions])
        assert driver.memory() is None
        assert driver.process_bytes() is None
        assert driver.utilization() is None

    @pytest.mark.parametrize("code", [GPU_IS_LOST, UNKNOWN])
    def test_a_failure_is_none_of_these(self, stub: NvmlStub, code: int) -> None:
        driver = first_gpu(stub)
        functions = (MEMORY_V2, PROCESSES, UTILIZATION)
        stub.tell(StubGpu(), errors=[(function, code) for function in functions])
        for question in (driver.memory, driver.process_bytes, driver.utilization):
            with pytest.raises(DriverError):
                question()

    def test_utilization_is_a_share(self, stub: NvmlStub) -> None:
        driver = first_gpu(stub)
        stub.tell(StubGpu(utilization_percent=35))
        assert driver.utilization() == 0.35
        stub.tell(StubGpu(utilization_percent=0))
        assert driver.utilization() == 0.0


class TestProcesses:
    """Best effort."""

    def test_those_of_the_server_count_together(self, stub: NvmlStub) -> None:
        driver = first_gpu(stub)
        stub.tell(StubGpu(processes={"self": 5 * GIB, 17: 3 * GIB, 18: GIB}))
        assert driver.process_bytes() == 5 * GIB
        assert driver.process_bytes({17, 18}) == 4 * GIB
        assert driver.process_bytes({17, 999}) == 3 * GIB

    @pytest.mark.parametrize(
        "processes",
        [{}, {1: 5 * GIB}, {"self": None}, {"self": GIB, 17: None}],
        ids=["nobody", "ids of another namespace", "not told", "told of one alone"],
    )
    def test_what_is_not_known_is_not_0(
        self, stub: NvmlStub, processes: dict[int | str, int | None]
    ) -> None:
        driver = first_gpu(stub)
        stub.tell(StubGpu(processes=processes))
        assert driver.process_bytes({os.getpid(), 17}) is None

    def test_a_driver_older_than_the_question_tells_nothing(self, stub: NvmlStub) -> None:
        driver = first_gpu(stub)
        stub.tell(StubGpu(processes={"self": GIB}), errors=[(PROCESSES, FUNCTION_NOT_FOUND)])
        assert driver.process_bytes() is None

    def test_a_process_that_has_nothing_has_0(self, stub: NvmlStub) -> None:
        driver = first_gpu(stub)
        stub.tell(StubGpu(processes={"self": 0}))
        assert driver.process_bytes() == 0


class TestVisible:
    """CUDA_VISIBLE_DEVICES."""

    GPUS = (
        StubGpu(uuid="GPU-aa11"),
        StubGpu(uuid="GPU-aa22"),
        StubGpu(parts=(StubGpu(10 * GIB, uuid="MIG-x"), StubGpu(20 * GIB, uuid="MIG-y"))),
    )

    @pytest.mark.parametrize(
        ("value", "labels"),
        [
            (None, ["0", "1", "2:0", "2:1"]),
            ("", []),
            ("1", ["1"]),
            ("1, 0", ["1", "0"]),
            ("0,-1,1", ["0"]),
            ("0,7,1", ["0"]),
            ("0,0", ["0"]),
            ("nonsense", []),
            ("GPU-aa22,0", ["1", "0"]),
            ("GPU-aa2", ["1"]),
            ("GPU-aa", []),
            ("GPU-b", []),
            ("2", ["2:0", "2:1"]),
            ("MIG-y", ["2:1"]),
            ("MIG-z,0", []),
        ],
    )
    def test_what_it_leaves(self, stub: NvmlStub, value: str | None, labels: list[str]) -> None:
        gpus = visible_gpus(opened(stub, *self.GPUS), value)
        assert [gpu.label for gpu in gpus] == labels

    def test_a_part_has_memory_and_processes_and_no_utilization(self, stub: NvmlStub) -> None:
        (part,) = visible_gpus(opened(stub, *self.GPUS), "MIG-y")
        parts = (StubGpu(10 * GIB), StubGpu(20 * GIB, 5 * GIB, processes={"self": 4 * GIB}))
        stub.tell(*self.GPUS[:2], StubGpu(parts=parts))
        assert part.driver.memory() == GpuMemory(20 * GIB, 5 * GIB, 14 * GIB, GIB)
        assert part.driver.process_bytes() == 4 * GIB
        assert part.driver.utilization() is None

    def test_of_the_whole_of_a_cut_gpu_a_container_is_not_told(self, stub: NvmlStub) -> None:
        library = opened(stub, *self.GPUS)
        whole = GpuDriver(library, library.nvmlDeviceGetHandleByIndex(2))
        assert whole.memory() is None

    def test_a_gpu_that_is_lost_at_the_start_is_a_failure(self, stub: NvmlStub) -> None:
        stub.tell(StubGpu(), errors=[("nvmlDeviceGetIndex", GPU_IS_LOST)])
        with pytest.raises(DriverError):
            visible_gpus(open_library(), None)


class TestNoDriver:
    """Machines without a GPU."""

    def test_a_driver_that_is_not_loaded(self, stub: NvmlStub) -> None:
        stub.end()
        with pytest.raises(NoDriver, match="Driver Not Loaded"):
            open_library()
        assert open_driver("GPU-aa11") is None

    def test_a_driver_that_fails(self, stub: NvmlStub) -> None:
        stub.tell(StubGpu(), errors=[("nvmlInitWithFlags", UNKNOWN)])
        with pytest.raises(DriverError):
            open_library()
        assert open_driver("GPU-aa11") is None

    def test_the_gpu_of_an_id(self, stub: NvmlStub) -> None:
        stub.tell(StubGpu(uuid="GPU-aa11", processes={"self": GIB}))
        driver = open_driver("GPU-aa11")
        assert driver is not None
        assert driver.process_bytes() == GIB
        assert open_driver("GPU-bb") is None

    def test_no_client(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", None)
        with pytest.raises(NoDriver, match="extra gpu"):
            open_library()

    def test_no_library(self) -> None:
        """In another process: this one has the stub."""
        code = (
            "from service.device.nvml import NoDriver, open_library\n"
            "try:\n    open_library()\nexcept NoDriver as error:\n    print(error)\n"
        )
        without = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=without, capture_output=True, text=True, check=True
        )
        if done.stdout == "" or "Driver Not Loaded" in done.stdout:
            pytest.skip("this machine has the library")
        assert done.stdout == "NVML Shared Library Not Found\n"

    def test_the_real_client_has_all_that_is_called(self) -> None:
        called = {name for name in vars(NvmlLibrary) if name.startswith("nvml")}
        assert len(called) > 10
        assert {name for name in called if not hasattr(pynvml, name)} == set()
