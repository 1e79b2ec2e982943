"""Whatever happens to a folder of blocks: never a wrong byte, never more than the bound."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from kv_tier_blocks import (
    BLOCK_BYTES,
    FINGERPRINT,
    OTHER_FINGERPRINT,
    buffers,
    contents,
    keys_of,
)

from kvcache.tiers import BlockKey
from kvcache.tiers.disk import DiskTier
from kvcache.tiers.disk_files import room_bytes
from kvcache.tiers.entry import head_bytes

NAMESPACES = (b"", b"a", b"b")
CHAINS = {
    (fingerprint, namespace): keys_of(6, namespace=namespace, fingerprint=fingerprint)
    for fingerprint in (FINGERPRINT, OTHER_FINGERPRINT)
    for namespace in NAMESPACES
}
ROOM = room_bytes(head_bytes(keys_of(1)[0]) + BLOCK_BYTES)

fingerprints = st.sampled_from([FINGERPRINT, OTHER_FINGERPRINT])
namespaces = st.sampled_from(NAMESPACES)
places = st.integers(0, 5)
numbers = st.integers(0, 2**31)
damages = st.sampled_from(["flip", "cut", "grow", "zero", "swap"])


class DiskMachine(RuleBasedStateMachine):
    """Puts, reads, drops, restarts and damage.

    What a block contains changes when its namespace is dropped, so that a block from before
    the drop would be seen as wrong bytes. `whole` are files that must be found again; `spoiled`,
    by digest, those that were damaged or deleted behind the back of the tier, which takes them for
    whole until it reads them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="kv-disk-"))
        self.versions = dict.fromkeys(CHAINS, 0)
        self.whole: set[tuple[bytes, bytes, int]] = set()
        self.spoiled: set[str] = set()
        self.fingerprint = FINGERPRINT

    @initialize(files=st.integers(1, 20))
    def first_start(self, files: int) -> None:
        self.start(files)

    def start(self, files: int) -> None:
        self.capacity = files * ROOM
        self.spoiled &= {path.stem for path in self.paths()}  # what is gone is seen to be
        self.tier = DiskTier(self.root, self.fingerprint, self.capacity)
        self.evicted()

    def evicted(self) -> None:
        """Something was given up: which files are there is the tier's affair now."""
        if self.tier.stats().evicted_blocks:
            self.whole.clear()

    def key(self, namespace: bytes, place: int) -> BlockKey:
        return CHAINS[self.fingerprint, namespace][place]

    def paths(self) -> list[Path]:
        return sorted(self.root.rglob("*.kv"))

    @rule(namespace=namespaces, place=places)
    def put(self, namespace: bytes, place: int) -> None:
        key = self.key(namespace, place)
        version = self.versions[self.fingerprint, namespace]
        assert self.tier.put(key, contents(key, version))
        self.evicted()
        if key.digest.hex() not in self.spoiled:
            self.whole.add((self.fingerprint, namespace, place))

    @rule(namespace=namespaces, place=places, count=st.integers(0, 6))
    def read(self, namespace: bytes, place: int, count: int) -> None:
        keys = CHAINS[self.fingerprint, namespace][place : place + count]
        into = buffers(len(keys))
        version = self.versions[self.fingerprint, namespace]
        expected = self.tier.leading_hits(keys)
        faults = sum(self.tier.stats().faults.values())
        present = {path.stem for path in self.paths()}
        got = self.tier.read(keys, into)
        assert [bytes(b) for b in into[:got]] == [contents(key, version) for key in keys[:got]]
        whole = [(self.fingerprint, namespace, place + at) in self.whole for at in range(len(keys))]
        assert got >= (whole.index(False) if False in whole else len(whole))
        assert got <= expected
        if got < expected:
            bad = keys[got].digest.hex()
            assert bad in self.spoiled
            self.spoiled.remove(bad)
            faults += bad in present
        assert sum(self.tier.stats().faults.values()) == faults

    @rule(namespace=namespaces)
    def drop(self, namespace: bytes) -> None:
        self.tier.drop_namespace(namespace)
        self.forget(namespace)

    @rule()
    def clear(self) -> None:
        self.tier.clear()
        for namespace in NAMESPACES:
            self.forget(namespace)

    def forget(self, namespace: bytes) -> None:
        self.versions[self.fingerprint, namespace] += 1
        self.whole = {w for w in self.whole if w[:2] != (self.fingerprint, namespace)}
        self.spoiled -= {key.digest.hex() for key in CHAINS[self.fingerprint, namespace]}

    @rule(files=st.integers(1, 20), fingerprint=fingerprints, leaves_half=st.booleans())
    def restart(self, files: int, fingerprint: bytes, leaves_half: bool) -> None:
        """As after a kill: nothing is tidied up, and half a file may be left."""
        if leaves_half:
            (self.root / ".plimsoll-incoming" / "0").write_bytes(b"PLIMSOLL half")
            (self.root / ".plimsoll-dropped" / "0").mkdir(exist_ok=True)
        self.tier.close()
        self.fingerprint = fingerprint
        self.start(files)

    @rule(
        which=numbers, where=numbers, kind=st.sampled_from(["flip", "cut", "grow", "zero", "swap"])
    )
    def damage(self, which: int, where: int, kind: str) -> None:
        paths = self.paths()
        if not paths:
            return
        path = paths[which % len(paths)]
        data = bytearray(path.read_bytes())
        if not data:
            return
        if kind == "flip":
            data[where % len(data)] ^= 1 << where % 8
        elif kind == "cut":
            del data[where % len(data) :]
        elif kind == "grow":
            data += b"\0"
        elif kind == "zero":
            data = bytearray(len(data))
        else:
            data = bytearray(paths[where % len(paths)].read_bytes())
        times = path.stat()
        path.write_bytes(data)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        self.spoil(path)

    @rule(which=numbers)
    def delete(self, which: int) -> None:
        paths = self.paths()
        if paths:
            path = paths[which % len(paths)]
            path.unlink()
            self.spoil(path)

    def spoil(self, path: Path) -> None:
        self.spoiled.add(path.stem)
        self.whole = {w for w in self.whole if CHAINS[w[:2]][w[2]].digest.hex() != path.stem}

    @invariant()
    def is_bounded(self) -> None:
        stats = self.tier.stats()
        assert stats.used_bytes is not None
        assert stats.used_bytes <= self.capacity
        assert sum(room_bytes(path.stat().st_size) for path in self.paths()) <= self.capacity
        assert list((self.root / ".plimsoll-incoming").iterdir()) == []

    def teardown(self) -> None:
        self.tier.close()
        shutil.rmtree(self.root)


TestDiskMachine = DiskMachine.TestCase
TestDiskMachine.settings = settings(max_examples=20, stateful_step_count=40, deadline=None)
