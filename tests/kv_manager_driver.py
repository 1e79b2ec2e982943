"""Drives a cache manager in the tests as a scheduler would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvcache import AdmissionRequest, CacheManager, Fits

RED, BLUE = b"red", b"blue"


def tokens(ids: Sequence[int]) -> NDArray[np.int32]:
    return np.array(ids, np.int32)


def request(
    sequence_id: int, ids: Sequence[int], namespace: bytes = RED, **fields: Any
) -> AdmissionRequest:
    return AdmissionRequest(sequence_id, tokens(ids), namespace, **fields)


def begin(manager: CacheManager, wanted: AdmissionRequest) -> int:
    answer = manager.admit(wanted)
    assert isinstance(answer, Fits), answer
    return manager.begin(answer)


def run(manager: CacheManager, wanted: AdmissionRequest) -> int:
    """Admits and computes all tokens; answers how many were cached."""
    cached = begin(manager, wanted)
    manager.commit(wanted.sequence_id, wanted.token_ids.size)
    return cached


def serve(manager: CacheManager, wanted: AdmissionRequest) -> int:
    """A whole life of a sequence that generates nothing."""
    cached = run(manager, wanted)
    assert manager.release(wanted.sequence_id)
    manager.audit()
    return cached


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class ByteMemory:
    """A BlockMemory of one byte a token."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.block_bytes = block_tokens
        self.blocks = [bytearray(block_tokens) for _ in range(num_blocks)]
        self.copies: list[tuple[int, int]] = []

    def copy(self, source: int, destination: int) -> None:
        self.blocks[destination][:] = self.blocks[source]
        self.copies.append((source, destination))

    def read(self, block: int) -> memoryview:
        return memoryview(self.blocks[block])

    def write(self, block: int, data: bytes | memoryview) -> None:
        self.blocks[block][:] = data
