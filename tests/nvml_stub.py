"""A driver of GPUs that are not there: `nvml_stub.c`, built and told what to answer.

It takes the place of libnvidia-ml.so.1 below the unmodified nvidia-ml-py; the figures are
made up. Of a server:

    stub = NvmlStub(tmp_path)
    stub.tell(StubGpu(used_bytes=40 * GIB, processes={"self": 38 * GIB}))
    with monkeypatch.context() as patch:
        for name, value in stub.environment.items():
            patch.setenv(name, value)
        with serve(...) as live:
            stub.tell(StubGpu(used_bytes=79 * GIB, processes={"self": 38 * GIB}))  # while it runs
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

GIB = 1024**3
COMPILER = shutil.which("cc")

_SOURCE = Path(__file__).with_name("nvml_stub.c")
_NAME = "libnvidia-ml.so.1"  # which nvidia-ml-py asks the loader for
STATE_VARIABLE = "NVML_STUB_STATE"


@dataclass(slots=True)
class StubGpu:
    """A GPU, or a part of one (MIG). Its parts put it into MIG mode."""

    total_bytes: int = 80 * GIB
    used_bytes: int = 0  # by processes
    reserved_bytes: int = GIB  # what is left is free
    utilization_percent: int = 0
    # By process id, "self" being who asks; None: the driver does not tell.
    processes: Mapping[int | str, int | None] = field(default_factory=dict)
    uuid: str | None = None  # None: one of its own
    parts: Sequence[StubGpu] = ()


class NvmlStub:
    """The library, and the file that it reads again at every call."""

    def __init__(self, folder: Path) -> None:
        """Builds it with the C compiler into the folder. Until `tell` there is no driver."""
        self.library = folder / _NAME
        self.state = folder / "nvml_state"
        command = [str(COMPILER), "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        # A library of this name that is loaded is the one that the process gets.
        command += [f"-Wl,-soname,{_NAME}", "-o", str(self.library), str(_SOURCE)]
        subprocess.run(command, check=True)

    def load_here(self) -> None:
        """Gives it to this process, whatever its variables: it is the one of its name from now on.

        Where its state is, NVML_STUB_STATE says here, too.
        """
        ctypes.CDLL(str(self.library))

    @property
    def environment(self) -> dict[str, str]:
        """Variables for a process that is to find this library, and its state."""
        paths = [str(self.library.parent), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        return {"LD_LIBRARY_PATH": ":".join(paths), STATE_VARIABLE: str(self.state)}

    def tell(
        self,
        *gpus: StubGpu,
        errors: Sequence[tuple[str, int]] = (),
        hangs: Sequence[str] = (),
        lost: Sequence[int] = (),
    ) -> None:
        """What it answers from now on.

        `errors`: functions and what they return; `hangs`: functions that do not return until
        told otherwise; `lost`: GPUs, by index, that have fallen off the bus. A function may be
        followed by a space and the label of the one GPU that is meant, as in "nvmlDeviceGetIndex
        0:1".
        """
        lines = [line for index, gpu in enumerate(gpus) for line in _lines(str(index), gpu)]
        lines += [f"error {_of_whom(function)} {code}" for function, code in errors]
        lines += [f"hang {_of_whom(function)}" for function in hangs]
        lines += [f"error {function} {index} 15" for function in _OF_A_GPU for index in lost]
        part = self.state.with_suffix(".part")
        part.write_text("".join(f"{line}\n" for line in lines))
        part.replace(self.state)
        self._hung.unlink(missing_ok=True)

    @property
    def is_hanging(self) -> bool:
        """Whether somebody waits for a function that `hangs`."""
        return self._hung.exists()

    @property
    def _hung(self) -> Path:
        return self.state.with_name(f"{self.state.name}.hung")

    def end(self) -> None:
        """From now on there is no driver."""
        self.state.unlink(missing_ok=True)
        self._hung.unlink(missing_ok=True)


_OF_A_GPU = (
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetUtilizationRates",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)


def _of_whom(function: str) -> str:
    return function if " " in function else f"{function} *"


def _lines(label: str, gpu: StubGpu) -> list[str]:
    uuid = gpu.uuid or f"{'MIG' if ':' in label else 'GPU'}-{label.replace(':', '-')}-of-the-stub"
    figures = (gpu.total_bytes, gpu.reserved_bytes, gpu.used_bytes, gpu.utilization_percent)
    lines = [f"gpu {label} {uuid} {' '.join(map(str, figures))}"]
    for process_id, size_bytes in gpu.processes.items():
        lines.append(f"process {label} {process_id} {-1 if size_bytes is None else size_bytes}")
    for index, part in enumerate(gpu.parts):
        lines += _lines(f"{label}:{index}", part)
    return lines
