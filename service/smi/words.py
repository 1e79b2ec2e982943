"""Numbers in words that fit a terminal; "-" for what is not known."""

from __future__ import annotations

# What the server tells of an end of memory that is not in sight.
FOREVER_SECONDS = 86400.0
_MIB, _GIB = 2**20, 2**30
UNKNOWN = "-"


def size(size_bytes: float | None) -> str:
    """MiB as nvidia-smi has them, KiB below one, GiB from 100 GiB on."""
    if size_bytes is None:
        return UNKNOWN
    if size_bytes >= 100 * _GIB:
        return f"{size_bytes / _GIB:.1f} GiB"
    if size_bytes >= _MIB or size_bytes == 0:
        return f"{size_bytes / _MIB:.0f} MiB"
    return f"{max(1.0, size_bytes / 1024):.0f} KiB"  # not 0, which it is not


def count(number: float | None) -> str:
    return UNKNOWN if number is None else f"{number:.0f}"


def share(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.0%}"


def latency(seconds: float | None) -> str:
    """Milliseconds below a second."""
    if seconds is None:
        return UNKNOWN
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds:.3g} s"


def exhaustion(seconds: float | None) -> str:
    """When a forecast says that memory ends."""
    if seconds is None:
        return UNKNOWN
    return "not in sight" if seconds >= FOREVER_SECONDS else f"in {duration(seconds)}"


def duration(seconds: float | None) -> str:
    """The two largest units."""
    if seconds is None:
        return UNKNOWN
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if hours == 0:
        return f"{minutes} min {whole % 60} s"
    return f"{hours} h {minutes % 60} min" if days == 0 else f"{days} d {hours % 24} h"
