"""Which cores of the machine this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CPUS = Path("/sys/devices/system/cpu")


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
