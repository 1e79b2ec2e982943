"""The files of the disk tier: what they are called, and which there are."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DISK_BLOCK_BYTES = 4096
_HEX_DIGEST = re.compile(r"[0-9a-f]{64}")
_FAN_OUT = re.compile(r"[0-9a-f]{2}")
_SUFFIX = ".kv"


@dataclass(frozen=True, slots=True)
class BlockFile:
    """One block on the disk."""

    fingerprint: str
    namespace: str
    digest: str
    room_bytes: int  # on the disk, whole disk blocks

    def path(self, root: Path) -> Path:
        """Where it is below the folder of the tier."""
        fan_out = self.digest[:2]  # a folder of a million files is slow on some file systems
        return root / self.fingerprint / self.namespace / fan_out / (self.digest + _SUFFIX)


def own(lock: Path) -> int:
    """Takes the lock for this process; the descriptor holds it until it is closed.

    Raises OSError when another has it.
    """
    # flock, not a file that exists: a killed process leaves nothing to clean up.
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise OSError(error.errno, "the folder is owned by another process", str(lock)) from error
    return descriptor


def room_bytes(size_bytes: int) -> int:
    """What a file of this size takes of the disk."""
    return -(-size_bytes // _DISK_BLOCK_BYTES) * _DISK_BLOCK_BYTES


def write_all(descriptor: int, data: memoryview) -> None:
    """Writes everything, in as many calls as it takes."""
    while len(data):
        data = data[os.write(descriptor, data) :]


def block_files(root: Path) -> Iterator[tuple[int, BlockFile]]:
    """The files of blocks below a folder, each with the time of its last use."""
    for fingerprint in _folders(root, _HEX_DIGEST):
        for namespace in _folders(fingerprint, _HEX_DIGEST):
            for fan_out in _folders(namespace, _FAN_OUT):
                with os.scandir(fan_out) as found:
                    for item in found:
                        digest = item.name.removesuffix(_SUFFIX)
                        is_named = item.name.endswith(_SUFFIX) and _HEX_DIGEST.fullmatch(digest)
                        if not is_named or not item.is_file(follow_symlinks=False):
                            continue
                        status = item.stat(follow_symlinks=False)
                        room = room_bytes(status.st_size)
                        file = BlockFile(fingerprint.name, namespace.name, digest, room)
                        yield status.st_mtime_ns, file


def _folders(parent: Path, pattern: re.Pattern[str]) -> list[Path]:
    with os.scandir(parent) as found:
        return [
            Path(item.path)
            for item in found
            if item.is_dir(follow_symlinks=False) and pattern.fullmatch(item.name)
        ]
