"""How much memory this process may take: what the machine has, and its control groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class _Controller:
    """Where a version of the memory controller keeps its figures."""

    folder: str  # below the root of the file system
    limit: str
    used: str
    reclaimable: str  # field of memory.stat: file pages that are dropped before anybody fails


_VERSION_1 = _Controller(
    "sys/fs/cgroup/memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)
_VERSION_2 = _Controller("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")


# Version 1 has no word for a group without a limit, but a number of about 2 ** 63.
_NO_LIMIT_BYTES = 1 << 62


def available_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can still be taken without swapping, within every limit on this process.

    The least of MemAvailable and, for the control group of the process and each one above
    it, the limit minus what its members use. `root` is the file system to look in.
    """
    available = _meminfo_bytes(root / "proc/meminfo", "MemAvailable")
    for controller, group, limit_bytes in _limited_groups(root):
        used = _read(group / controller.used)
        if used is not None:
            reclaimable = _stat_bytes(group / "memory.stat", controller.reclaimable)
            available = min(available, limit_bytes - int(used) + reclaimable)
    return max(0, available)


def total_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes of memory that this process could have at most, were it alone on the machine.

    The least of MemTotal and the limits of the control groups that it is in.
    """
    total = _meminfo_bytes(root / "proc/meminfo", "MemTotal")
    return min([total, *(limit_bytes for _, _, limit_bytes in _limited_groups(root))])


def _limited_groups(root: Path) -> Iterator[tuple[_Controller, Path, int]]:
    """Those of `_groups` that have a limit, with its bytes."""
    for controller, group in _groups(root):
        limit = _read(group / controller.limit)
        if limit is not None and limit != "max" and int(limit) < _NO_LIMIT_BYTES:
            yield controller, group, int(limit)


def _groups(root: Path) -> Iterator[tuple[_Controller, Path]]:
    """The folders of the process's group and of its parents, as far as they can be seen.

    Inside a container the own group is often mounted as the top one, under another path
    than the process is told: folders that are not there are passed over by the reader.
    """
    for line in (_read(root / "proc/self/cgroup") or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            controller = _VERSION_2
        elif "memory" in controllers.split(","):
            controller = _VERSION_1
        else:
            continue
        relative = PurePosixPath(path).relative_to("/")
        for folder in (relative, *relative.parents):
            yield controller, root / controller.folder / folder


def _meminfo_bytes(meminfo: Path, field: str) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} has no field {field}")


def _stat_bytes(stat: Path, field: str) -> int:
    for line in (_read(stat) or "").splitlines():
        name, value = line.split()
        if name == field:
            return int(value)
    return 0


def _read(path: Path) -> str | None:
    return path.read_text().strip() if path.is_file() else None
