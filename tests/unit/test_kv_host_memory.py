"""How much memory a process may still take, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvcache.host_memory import available_memory_bytes, total_memory_bytes

V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
V2 = ("memory.max", "memory.current", "inactive_file")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A file system whose /proc/meminfo leaves 1,024,000 bytes."""
    (tmp_path / "proc/self").mkdir(parents=True)
    meminfo = "MemTotal:  2000 kB\nMemFree: 3 kB\nMemAvailable:  1000 kB\n"
    (tmp_path / "proc/meminfo").write_text(meminfo)
    return tmp_path


def member_of(root: Path, line: str) -> None:
    lines = f"9:name=systemd:/\n{line}\n8:cpu,cpuacct:/elsewhere\n"
    (root / "proc/self/cgroup").write_text(lines)


def group(
    root: Path, path: str, limit: str, used: int, reclaimable: int = 0, names: tuple[str, ...] = V2
) -> None:
    folder = root / "sys/fs/cgroup" / path
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 7\n{names[2]} {reclaimable}\nfile 9\n")


@pytest.mark.parametrize(
    ("limit", "used", "available_bytes"),
    [
        ("max", 5, 1_024_000),
        ("500000", 100_000, 400_000),
        ("500000", 600_000, 0),
        ("9000000", 1, 1_024_000),
    ],
)
def test_memory_is_what_the_machine_and_the_control_group_leave(
    root: Path, limit: str, used: int, available_bytes: int
) -> None:
    member_of(root, "0::/")
    group(root, ".", limit, used)
    assert available_memory_bytes(root) == available_bytes


def test_a_machine_without_control_groups(root: Path) -> None:
    assert available_memory_bytes(root) == 1_024_000


def test_file_pages_that_can_be_dropped_are_available(root: Path) -> None:
    member_of(root, "0::/")
    group(root, ".", "500000", 450_000, reclaimable=200_000)
    assert available_memory_bytes(root) == 250_000


def test_the_tightest_limit_above_the_process_counts(root: Path) -> None:
    member_of(root, "0::/pods/mine")
    group(root, "pods/mine", "900000", 100_000)
    group(root, "pods", "700000", 400_000)
    group(root, "other", "10", 10)
    assert available_memory_bytes(root) == 300_000


def test_the_first_version_of_control_groups(root: Path) -> None:
    member_of(root, "4:memory:/pods/mine")
    group(root, "memory/pods/mine", "900000", 500_000, reclaimable=100_000, names=V1)
    group(root, "memory", str(2**63 - 4096), 1, names=V1)
    assert available_memory_bytes(root) == 500_000


def test_a_container_whose_own_group_is_mounted_on_top(root: Path) -> None:
    member_of(root, "0::/kubepods/burstable/pod1")
    group(root, ".", "500000", 100_000)
    assert available_memory_bytes(root) == 400_000


def test_this_machine_has_memory() -> None:
    assert 0 < available_memory_bytes() < 1 << 50


@pytest.mark.parametrize(
    ("limit", "total_bytes"), [("max", 2_048_000), ("500000", 500_000), ("9000000", 2_048_000)]
)
def test_all_memory_is_that_of_the_machine_or_of_the_smallest_group(
    root: Path, limit: str, total_bytes: int
) -> None:
    assert total_memory_bytes(root) == 2_048_000
    member_of(root, "0::/pod/container")
    group(root, "pod", limit, used=400_000)
    group(root, "pod/container", "8000000", used=1)
    assert total_memory_bytes(root) == total_bytes


def test_a_group_without_a_limit_is_not_looked_at_further(root: Path) -> None:
    """Ten times a second it would cost more than all the rest."""
    member_of(root, "4:memory:/pod")
    group(root, "memory/pod", "9223372036854771712", used=5, names=V1)
    (root / "sys/fs/cgroup/memory/pod" / V1[1]).write_text("no number")
    assert available_memory_bytes(root) == 1_024_000
    assert total_memory_bytes(root) == 2_048_000
