"""A store in memory that can be slow, fail, or never answer, for tests of what is around it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from kvcache.tiers import BlockKey, TierStats


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now_seconds = 1000.0

    def __call__(self) -> float:
        return self.now_seconds

    def advance(self, seconds: float) -> None:
        self.now_seconds += seconds


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    """Waits for what another thread is about to do."""
    give_up_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up_at, "it did not happen"
        time.sleep(0.001)


class FakeTier:
    """A `Tier`; a call waits while the gate of its kind (look, read, put, drop) is cleared.

    Gates are looked at before anything is done, so a late read sees the store of that time
    unless `reads_early` is set: then the bytes are taken first and handed over late.
    """

    name = "fake"

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.refuses = False
        self.is_closed = False
        self.calls = 0
        self.waiting = 0
        self.reads_early = False
        self._gates = {kind: threading.Event() for kind in ("look", "read", "put", "drop")}
        self._lock = threading.Lock()
        self._blocks: dict[BlockKey, bytes] = {}
        self.counts: Counter[str] = Counter()
        self.open_all()

    def gate(self, kind: str) -> threading.Event:
        return self._gates[kind]

    def open_all(self) -> None:
        for gate in self._gates.values():
            gate.set()

    def blocks_of(self, namespace: bytes) -> int:
        with self._lock:
            return sum(key.namespace == namespace for key in self._blocks)

    def _enter(self, kind: str) -> None:
        with self._lock:
            self.calls += 1
            self.counts[kind] += 1
            self.waiting += 1
        self._gates[kind].wait()
        with self._lock:
            self.waiting -= 1
        if self.error is not None:
            raise self.error

    def leading_hits(self, keys: Sequence[BlockKey]) -> int:
        self._enter("look")
        with self._lock:
            return next((n for n, key in enumerate(keys) if key not in self._blocks), len(keys))

    def read(self, keys: Sequence[BlockKey], into: Sequence[memoryview]) -> int:
        with self._lock:
            before = dict(self._blocks)
        self._enter("read")
        with self._lock:
            blocks = before if self.reads_early else self._blocks
            for count, (key, buffer) in enumerate(zip(keys, into, strict=True)):
                if key not in blocks:
                    return count
                buffer[:] = blocks[key]
        return len(keys)

    def put(self, key: BlockKey, payload: bytes | bytearray | memoryview) -> bool:
        self._enter("put")
        with self._lock:
            if not self.refuses:
                self._blocks[key] = bytes(payload)
        return not self.refuses

    def drop_namespace(self, namespace: bytes) -> None:
        self._enter("drop")
        with self._lock:
            self._blocks = {k: v for k, v in self._blocks.items() if k.namespace != namespace}

    def clear(self) -> None:
        self._enter("drop")
        with self._lock:
            self._blocks.clear()

    def stats(self) -> TierStats:
        with self._lock:
            return TierStats(len(self._blocks), None, None, 0, 0, 0, {})

    def close(self) -> None:
        self.is_closed = True
