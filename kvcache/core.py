"""The mechanism under the manager: pool, prefix index and block tables as one machine.

There are two, alike to the last block number: `native` (C++, in `kvcache/native`) and `python`,
which is its oracle in the tests and takes its place where no compiler was at hand. Rules that
are applied once a request (admission, reasons of misses) stay above, in the manager; what is
done for every block and token is down here.
"""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvcache.errors import InvalidArgumentError, NativeCoreMissingError
from kvcache.events import EventLog, Run
from kvcache.eviction import PROTECTED_SHARE, REUSE_WEIGHT, PolicyName, create_policy
from kvcache.python_core import PythonCore

Tokens = NDArray[np.int32]
# Matched blocks; of these, held by nobody now; and what the core needs to find them again. Void
# when the core changes.
PrefixMatch = tuple[int, int, object]
NO_MATCH: PrefixMatch = (0, 0, 0)
CoreChoice = Literal["auto", "native", "python"]
_logger = logging.getLogger(__name__)


class CoreCounts(NamedTuple):
    """Gauges in blocks, and two counters; see CacheStats."""

    free: int
    cached: int
    held: int
    shared: int
    reserved: int
    live_sequences: int
    deduplicated: int
    evicted: int


class CacheCore(Protocol):
    """What the manager asks of a core. Token arrays are flat, contiguous and int32.

    Operations on a sequence that is not live raise UnknownSequenceError. Each that changes
    something checks the conservation of blocks before it returns.
    """

    @property
    def version(self) -> int:
        """Grows with every change."""

    @property
    def available_blocks(self) -> int:
        """Free and evictable blocks."""

    @property
    def live_sequences(self) -> int:
        """Sequences that hold blocks."""

    def match(self, namespace: bytes, tokens: Tokens, max_blocks: int, /) -> PrefixMatch:
        """The longest cached prefix of `tokens`, at most `max_blocks` whole blocks."""

    def forgotten_blocks(
        self, namespace: bytes, tokens: Tokens, match: PrefixMatch, max_blocks: int, /
    ) -> int:
        """How many blocks right behind `match` were evicted not long ago."""

    def begins_elsewhere(self, namespace: bytes, tokens: Tokens, /) -> bool:
        """Whether another namespace has the first block of `tokens`, and this one has not."""

    def pending_blocks(self, namespace: bytes, tokens: Tokens, max_blocks: int, /) -> int:
        """The most leading blocks that `tokens` share with a prompt that is being computed."""

    def is_live(self, sequence_id: int, /) -> bool:
        """Whether the sequence holds blocks."""

    def begin(
        self,
        sequence_id: int,
        namespace: bytes,
        tokens: Tokens,
        publish: bool,
        match: PrefixMatch,
        is_reuse: bool,
        /,
    ) -> None:
        """Holds the matched blocks and allocates the others for `tokens`, evicting as needed.

        With `is_reuse` the matched blocks count as reused from now on, if nobody held the last.
        Raises DuplicateSequenceError, or OutOfBlocksError; then nothing has changed.
        """

    def append(self, sequence_id: int, token_id: int, /) -> int:
        """Adds a token and makes sure that it has a slot; else answers the blocks missing."""

    def commit(self, sequence_id: int, computed_tokens: int, /) -> None:
        """Publishes the full blocks of the computed tokens, each once."""

    def release(self, sequence_id: int, /) -> bool:
        """Ends the sequence; False if it is not live."""

    def flush(self, namespace: bytes | None, /) -> tuple[int, int]:
        """Forgets a namespace (None: all). Answers the blocks freed, and those still held."""

    def block_table(self, sequence_id: int, /) -> bytes | NDArray[np.int32]:
        """The blocks in order, int32, read-only."""

    def num_tokens(self, sequence_id: int, /) -> int:
        """Tokens, computed or not."""

    def computed_tokens(self, sequence_id: int, /) -> int:
        """Leading tokens whose K and V are written."""

    def exclusive_blocks(self, sequence_id: int, /) -> int:
        """Blocks that no other sequence holds."""

    def largest_holders(self, count: int, /) -> tuple[int, ...]:
        """Sequences with the longest block tables; of equal ones those that began earlier."""

    def counts(self) -> tuple[int, ...]:
        """The values of CoreCounts."""

    def runs(self) -> list[Run]:
        """Everything in the index, parents before what continues them."""

    def check(self) -> None:
        """Conservation, O(1)."""

    def audit(self) -> None:
        """Everything against everything."""


def create_core(
    choice: CoreChoice,
    num_blocks: int,
    block_tokens: int,
    policy: PolicyName,
    events: EventLog | None,
) -> tuple[str, CacheCore]:
    """The name of a core, and the core. `auto` is the native one where it was built.

    The native core does not tell events; with an event log `auto` is the Python one. Raises
    NativeCoreMissingError when `native` is demanded and cannot be loaded.
    """
    eviction = create_policy(policy, num_blocks - 1)
    if choice not in ("auto", "native", "python"):
        raise InvalidArgumentError("core", choice, "auto, native or python")
    if choice == "native" and events is not None:
        raise InvalidArgumentError("core", choice, "auto or python where an event log is given")
    if choice == "native" or (choice == "auto" and events is None):
        try:
            from kvcache._native import NativeCore
        except ImportError as error:
            if choice == "native":
                raise NativeCoreMissingError(str(error)) from error
            _logger.warning("kvcache runs without its native core, several times slower: %s", error)
        else:
            weight = REUSE_WEIGHT if policy == "reuse-aware" else 0
            protected_blocks = int((num_blocks - 1) * PROTECTED_SHARE)
            return "native", NativeCore(num_blocks, block_tokens, weight, protected_blocks)
    return "python", PythonCore(num_blocks, block_tokens, eviction, events)
