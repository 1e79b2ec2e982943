"""The disk tier: one file a block, found again after a restart.

    ROOT/.plimsoll-lock                         held by the process that owns the tier
    ROOT/.plimsoll-incoming/SERIAL              files being written
    ROOT/.plimsoll-dropped/SERIAL/              namespaces that were dropped, being deleted
    ROOT/FINGERPRINT/NAMESPACE/XX/KEY.kv        blocks; XX are the first digits of KEY

Names are digests in hex. A file is written among the incoming ones and renamed when complete,
so it is there wholly or not at all when the process is killed. It is not synced: after a loss
of power a renamed file may be short or hold zeros, which its checksum finds, and a lost entry
of a cache is a miss, while a sync for each would cost more than the tier brings.

K and V tell the prompts they were computed from: a folder that the tier makes is its user's own.

Files of other fingerprints are never read, but they take room, so they count in the bound and
are the first to go. What does not look like a file of a tier is neither counted nor deleted.
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path

from kvcache.errors import InvalidArgumentError
from kvcache.tiers.disk_files import BlockFile, block_files, own, room_bytes, write_all
from kvcache.tiers.entry import BadEntryError, Buffer, EntryFault, encode_head, head_bytes, verify
from kvcache.tiers.keys import BlockKey, namespace_digest, require_fingerprint
from kvcache.tiers.tier import TierError, TierStats

_FULL = (errno.ENOSPC, errno.EDQUOT)
_LOCK, _INCOMING, _DROPPED = ".plimsoll-lock", ".plimsoll-incoming", ".plimsoll-dropped"


class DiskTier:
    """Blocks of one fingerprint under a folder, in at most `capacity_bytes`; see the module.

    The least recently used go first; the time of use is the file's modification time, so that
    the order too survives a restart. Raises TierError when the folder cannot be used, or
    another process owns it.
    """

    name = "disk"

    def __init__(self, root: Path, fingerprint: bytes, capacity_bytes: int) -> None:
        if capacity_bytes < 1:
            raise InvalidArgumentError("capacity_bytes", capacity_bytes, "at least 1")
        self._root = root
        self._fingerprint = require_fingerprint(fingerprint)
        self._capacity_bytes = capacity_bytes
        self._lock = threading.Lock()  # around the index, never around reads or writes of blocks
        self._serial = itertools.count()
        self._files: OrderedDict[str, BlockFile] = OrderedDict()  # least recently used first
        self._foreign: OrderedDict[Path, BlockFile] = OrderedDict()
        self._used_bytes = 0
        self._generation = 0  # of drops: what was begun before one must not come in after it
        self._read_blocks = self._written_blocks = self._evicted_blocks = 0
        self._faults: Counter[EntryFault] = Counter()
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._owned: int | None = own(root / _LOCK)
        except OSError as error:
            raise TierError(self.name, str(error)) from error
        try:
            self._scan()
        except OSError as error:
            self.close()
            raise TierError(self.name, str(error)) from error

    # --- reading -------------------------------------------------------------

    def leading_hits(self, keys: Sequence[BlockKey]) -> int:
        """How many of the first keys have a file."""
        with self._lock:
            hits = 0
            while hits < len(keys) and keys[hits].digest.hex() in self._files:
                hits += 1
            return hits

    def read(self, keys: Sequence[BlockKey], into: Sequence[memoryview]) -> int:
        """Reads leading blocks, each verified; a file that is wrong is removed."""
        for count, (key, target) in enumerate(zip(keys, into, strict=True)):
            if not self._read(key, target):
                return count
        return len(keys)

    def _read(self, key: BlockKey, target: memoryview) -> bool:
        with self._lock:
            file = self._files.get(key.digest.hex())
            if file is not None:
                self._files.move_to_end(file.digest)
        if file is None:
            return False
        path = file.path(self._root)
        try:
            self._read_file(path, key, target)
        except BadEntryError as error:
            self._discard(file, error.fault)
            return False
        except FileNotFoundError:  # evicted or dropped meanwhile, or deleted by somebody else
            self._discard(file, None)
            return False
        except OSError as error:
            raise TierError(self.name, str(error)) from error
        with self._lock:
            self._read_blocks += 1
        self._touch(path)
        return True

    def _read_file(self, path: Path, key: BlockKey, target: memoryview) -> None:
        head, excess = bytearray(head_bytes(key)), bytearray(1)
        with path.open("rb", buffering=0) as stream:
            size_bytes = os.readv(stream.fileno(), [head, target, excess])
        wanted_bytes = len(head) + len(target)
        if size_bytes < wanted_bytes:
            raise BadEntryError(EntryFault.TRUNCATED)
        if size_bytes > wanted_bytes:
            raise BadEntryError(EntryFault.CORRUPT)
        verify(self._fingerprint, key, head, target)

    def _touch(self, path: Path) -> None:
        try:
            os.utime(path)
        except FileNotFoundError:
            return  # evicted meanwhile: there is no time of use to keep
        except OSError as error:
            raise TierError(self.name, str(error)) from error

    def _discard(self, file: BlockFile, fault: EntryFault | None) -> None:
        with self._lock:
            if fault is not None:
                self._faults[fault] += 1
            if self._files.get(file.digest) is file:
                self._remove(file)

    # --- writing -------------------------------------------------------------

    def put(self, key: BlockKey, payload: Buffer) -> bool:
        """Writes one block; False if it does not fit in the tier at all.

        Where the disk is full before the tier is, False too: as much as the block takes is
        evicted instead, so that the tier settles at what there is room for.
        """
        digest = key.digest.hex()
        room = room_bytes(head_bytes(key) + len(payload))
        namespace = namespace_digest(key.namespace).hex()
        file = BlockFile(self._fingerprint.hex(), namespace, digest, room)
        with self._lock:
            if digest in self._files:
                self._files.move_to_end(digest)
                return True
            if room > self._capacity_bytes or not self._make_room(room):
                return False
            generation = self._generation
            self._used_bytes += room  # of the part, and then of the file
        part = self._root / _INCOMING / str(next(self._serial))
        try:
            with part.open("wb", buffering=0) as stream:
                for piece in (encode_head(self._fingerprint, key, payload), payload):
                    write_all(stream.fileno(), memoryview(piece))
            with self._lock:
                if generation == self._generation and digest not in self._files:
                    path = file.path(self._root)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    part.rename(path)
                    self._files[digest] = file
                    self._written_blocks += 1
                    return True
        except OSError as error:
            self._abandon(part, room)
            if error.errno in _FULL and self._evict_bytes(room):
                return False
            raise TierError(self.name, str(error)) from error
        self._abandon(part, room)
        return True

    def drop_namespace(self, namespace: bytes) -> None:
        """Forgets the blocks of one namespace, for good as soon as its folder is renamed."""
        dropped = namespace_digest(namespace).hex()
        with self._lock:
            files = [file for file in self._files.values() if file.namespace == dropped]
            trash = self._drop(self._root / self._fingerprint.hex() / dropped, files)
        shutil.rmtree(trash, ignore_errors=True)  # what is left goes at the next start

    def clear(self) -> None:
        """Forgets all blocks of this fingerprint."""
        with self._lock:
            trash = self._drop(self._root / self._fingerprint.hex(), list(self._files.values()))
        shutil.rmtree(trash, ignore_errors=True)

    def _drop(self, folder: Path, files: list[BlockFile]) -> Path:
        self._generation += 1
        trash = self._root / _DROPPED / str(next(self._serial))
        try:
            if folder.exists():
                folder.rename(trash)
        except OSError as error:
            raise TierError(self.name, str(error)) from error
        for file in files:
            del self._files[file.digest]
            self._used_bytes -= file.room_bytes
        return trash

    # --- the bound -----------------------------------------------------------

    def _make_room(self, room: int) -> bool:
        while self._used_bytes + room > self._capacity_bytes:
            oldest = next(itertools.chain(self._foreign.values(), self._files.values()), None)
            if oldest is None:
                return False  # the rest is taken by files that are being written
            self._remove(oldest)
            self._evicted_blocks += 1
        return True

    def _remove(self, file: BlockFile) -> None:
        path = file.path(self._root)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise TierError(self.name, str(error)) from error
        if self._foreign.pop(path, None) is None:
            del self._files[file.digest]
        self._used_bytes -= file.room_bytes

    def _evict_bytes(self, size_bytes: int) -> bool:
        """Makes so much of the disk free; False if the tier has less than that."""
        with self._lock:
            return self._make_room(self._capacity_bytes - self._used_bytes + size_bytes)

    def _abandon(self, part: Path, room: int) -> None:
        """Gives up a file that was being written."""
        with self._lock:
            self._used_bytes -= room
        try:
            part.unlink(missing_ok=True)
        except OSError as error:  # it goes at the next start
            raise TierError(self.name, str(error)) from error

    # --- start and end -------------------------------------------------------

    def _scan(self) -> None:
        for leftover in (_INCOMING, _DROPPED):
            shutil.rmtree(self._root / leftover, ignore_errors=True)
            (self._root / leftover).mkdir(exist_ok=True)
        found = sorted(block_files(self._root), key=lambda pair: pair[0])
        for _, file in found:
            if file.fingerprint == self._fingerprint.hex() and file.digest not in self._files:
                self._files[file.digest] = file
            else:
                self._foreign[file.path(self._root)] = file
            self._used_bytes += file.room_bytes
        self._make_room(0)

    def stats(self) -> TierStats:
        """Figures of this moment; `used_bytes` counts files of other fingerprints too."""
        with self._lock:
            return TierStats(
                entries=len(self._files),
                used_bytes=self._used_bytes,
                capacity_bytes=self._capacity_bytes,
                read_blocks=self._read_blocks,
                written_blocks=self._written_blocks,
                evicted_blocks=self._evicted_blocks,
                faults=dict(self._faults),
            )

    def close(self) -> None:
        """Lets another process own the folder."""
        if self._owned is not None:
            os.close(self._owned)
            self._owned = None
