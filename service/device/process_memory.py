"""What this process has in memory, from Linux."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

_SELF = Path("/proc/self")
_RESET_PEAK = "5"  # proc(5), clear_refs


def resident_bytes() -> int:
    """Memory that the process has now."""
    return _status_bytes("VmRSS")


def peak_bytes(work: Callable[[], object]) -> int | None:
    """By how much the memory of the process rose at most while `work` ran.

    None where the peak cannot be reset, as the system may forbid. What earlier work has freed
    goes back to the system first: used again, it would not count.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc alone
    if trim is not None:
        trim(0)
    try:
        (_SELF / "clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return None
    before_bytes = resident_bytes()
    work()
    return max(0, _status_bytes("VmHWM") - before_bytes)


def _status_bytes(field: str) -> int:
    for line in (_SELF / "status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no field {field}")
