"""What can hold a block, and the state that its holders give it."""

from __future__ import annotations

import enum
from collections.abc import Collection


class HolderKind(enum.IntEnum):
    """What a holder wants of its blocks."""

    SEQUENCE = 0  # computes with them
    PIN = 1  # keeps them from eviction
    LOAD = 2  # a transfer writes those that are not in the index yet
    STORE = 3  # a transfer reads them
    EXPECT = 4  # a waiting request would like to find them; the manager lets go first


class BlockState(enum.IntEnum):
    """FREE and CACHED blocks can be had, EXPECTED ones if need be; the others are somebody's."""

    FREE = 0
    HELD = 1  # by sequences
    CACHED = 2  # in the index, held by nobody, evictable
    EXPECTED = 3  # kept for requests that wait, as long as there are others
    PINNED = 4  # not evictable
    LOADING = 5  # a transfer writes it
    STORING = 6  # a transfer reads it
    NULL = 7  # block 0: target of padding, never owned


def state_of(kinds: Collection[HolderKind], *, is_published: bool) -> BlockState:
    """The state of a block with holders of these kinds, in the index or not."""
    if HolderKind.SEQUENCE in kinds:
        return BlockState.HELD
    if HolderKind.LOAD in kinds and not is_published:
        return BlockState.LOADING
    if HolderKind.STORE in kinds:
        return BlockState.STORING
    if HolderKind.PIN in kinds or HolderKind.LOAD in kinds:
        return BlockState.PINNED
    if HolderKind.EXPECT in kinds:
        return BlockState.EXPECTED
    return BlockState.CACHED if is_published else BlockState.FREE
