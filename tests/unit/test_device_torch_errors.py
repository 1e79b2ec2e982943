"""Which exceptions of torch mean that memory ran out, which that the device is lost."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from service.device.errors import DeviceLostError, DeviceOutOfMemoryError
from service.device.owner import Owner
from service.device.torch_errors import device_error

STEP_BYTES = 12345  # that the step was expected to take


def test_the_cpu_allocator_itself() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    error = device_error(caught.value, STEP_BYTES)
    assert isinstance(error, DeviceOutOfMemoryError)
    assert (error.owner, error.wanted_bytes) == (Owner.ACTIVATIONS, 1 << 60)
    assert (error.free_bytes, error.total_bytes) == (None, None)
    wanted = f"{1 << 60} bytes wanted for activations"
    assert str(error) == f"{wanted}, more than the allocator had"
    full = DeviceOutOfMemoryError(Owner.ACTIVATIONS, 1 << 60, 5, 1000)
    assert str(full) == f"{wanted}, 5 free of 1000"


def test_an_allocation_of_cpp_that_no_allocator_of_torch_made() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.zeros(1).expand(1 << 45).split(1)  # a vector of 2 ** 45 pointers
    error = device_error(caught.value, STEP_BYTES)
    assert isinstance(error, DeviceOutOfMemoryError)
    assert error.wanted_bytes == STEP_BYTES, "it does not say"


GPU_TEXT = (
    "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.20 GiB is free. Process 17 has 70.00 GiB memory in use."
)


@pytest.mark.parametrize(
    ("error", "wanted_bytes"),
    [
        (torch.OutOfMemoryError(GPU_TEXT), 5 << 29),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), 20 << 20),
        (torch.OutOfMemoryError("no figure"), STEP_BYTES),
        (MemoryError(), STEP_BYTES),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"),
            STEP_BYTES,
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), STEP_BYTES),
    ],
)
def test_out_of_memory(error: BaseException, wanted_bytes: int) -> None:
    translated = device_error(error, STEP_BYTES)
    assert isinstance(translated, DeviceOutOfMemoryError)
    assert translated.wanted_bytes == wanted_bytes


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nmore"),
        torch.AcceleratorError(""),
        RuntimeError("CUDA error: device-side assert triggered\nmore"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm`\n."),
    ],
)
def test_a_lost_device(error: BaseException) -> None:
    translated = device_error(error, STEP_BYTES)
    assert isinstance(translated, DeviceLostError)
    assert translated.cause == str(error).split("\n")[0]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
        ValueError("CUDA error is a part of this text"),
        KeyError("x"),
    ],
)
def test_anything_else_is_a_fault_of_the_program(error: BaseException) -> None:
    assert device_error(error, STEP_BYTES) is None


def test_a_translated_error_keeps_no_tensor_alive() -> None:
    def fail() -> weakref.ref[torch.Tensor]:
        tensor = torch.zeros(10)
        alive.append(weakref.ref(tensor))
        torch.empty(1 << 60, dtype=torch.uint8)
        return alive[0]

    alive: list[weakref.ref[torch.Tensor]] = []
    failure = None
    try:
        fail()
    except RuntimeError as error:
        failure = device_error(error, STEP_BYTES)
    gc.disable()
    try:
        assert failure is not None
        assert failure.__context__ is None
        assert alive[0]() is None, "without the garbage collector"
    finally:
        gc.enable()
