"""What this process may use of the machine: cores and memory."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")
_MEMINFO = Path("/proc/meminfo")


def usable_cores(cgroup: Path = _CGROUP, cpus: Path = _CPUS) -> int:
    """Physical cores within the affinity mask and the CPU quota of the control group."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        siblings = cpus / f"cpu{cpu}/topology/thread_siblings_list"
        cores.add(siblings.read_text().strip() if siblings.is_file() else str(cpu))
    quota_file = cgroup / "cpu.max"
    if quota_file.is_file():
        quota, period = quota_file.read_text().split()
        if quota != "max":
            return max(1, min(len(cores), math.ceil(int(quota) / int(period))))
    return len(cores)


def available_memory_bytes(cgroup: Path = _CGROUP, meminfo: Path = _MEMINFO) -> int:
    """Memory that can still be taken without swapping, the control group's limit included."""
    available = _meminfo_bytes(meminfo, "MemAvailable")
    limit_file, used_file = cgroup / "memory.max", cgroup / "memory.current"
    if limit_file.is_file() and used_file.is_file():
        limit = limit_file.read_text().strip()
        if limit != "max":
            available = min(available, max(0, int(limit) - int(used_file.read_text())))
    return available


def _meminfo_bytes(meminfo: Path, field: str) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} has no field {field}")
