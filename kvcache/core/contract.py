"""The mechanism under the manager: pool, prefix index and block tables as one machine.

There are two, alike to the last block number: `native` (C++, in `kvcache/native`) and `python`,
which is its oracle in the tests and takes its place where no compiler was at hand. Rules that
are applied once a request (admission, reasons of misses, deadlines) stay above, in the manager;
what is done for every block and token is down here.

Holders. Sequences, pins, loads, stores and expectations hold blocks in the same way: `begin`
starts a holder, `release` ends it. A holder of a block holds the blocks before it as well. The
kinds of a block's holders, and whether the index has it (it is published), make its state; see
`kvcache.core.states`.

Groups and levels. Every block is charged to one of 32 groups (tenants; 0 is everybody else) and
has one of 8 retention levels. Both come from the holder that it was allocated for; a holder of
a higher level raises the level of what it holds. A namespace belongs to one group as long as it
has blocks or holders. Charged to a group are its blocks that are not FREE; in use are those of
them that are neither CACHED nor EXPECTED.

Eviction of one block, see `kvcache.core.eviction.choose_ring`. Per group and level there are two
rings of CACHED blocks, least recently released first: blocks used once, and reused ones. Looked
at are the fronts of the rings that may be taken from:

1. Rank: the level of the ring; 0 once the release of the front is not after the expiry of that
   level. Only the fronts of the lowest rank stay.
2. Of the fronts of rings of blocks used once, the one that is idle longest; of reused ones the
   same; of equal ones that of the lowest class (group * 8 + level).
3. Where there are both: the reused one if it is idle longer than `reuse_weight` times the other,
   and if the rings that stayed have more reused blocks than min(`protected_blocks`, their blocks
   used once). Else the one used once. (A weight of 0: no block counts as reused; plain LRU.)

So nothing that stays continues the victim: it is a leaf, see `kvcache.core.eviction`. Fronts of
different classes are compared before the reuse rule is applied, not after: a class that protects
its reused blocks would otherwise lose what leads to them, where that has another level.

Room for `count` > 0 blocks on behalf of a group: while the blocks charged to it and `count` exceed
its quota, its own rings alone are evicted from; then, while fewer than `count` blocks are free,
its own rings and those of groups with more charged blocks than their floor. EXPECTED blocks are
not evicted: whoever counts on them being available releases the expectation first.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvcache.core.records import CoreEvent, CoreSample
from kvcache.events import Run

Tokens = NDArray[np.int32]
# Matched blocks; of these, CACHED or EXPECTED now; and the last of them (0: none). Void when the
# core changes.
PrefixMatch = tuple[int, int, int]
NO_MATCH: PrefixMatch = (0, 0, 0)


class CoreCounts(NamedTuple):
    """Gauges in blocks, and two counters; see CacheStats.

    free + cached + expected + held + pinned + loading + storing = num_blocks - 1.
    """

    free: int
    cached: int
    expected: int
    held: int
    pinned: int
    loading: int
    storing: int
    shared: int  # with two or more holders of any kind
    reserved: int  # entries of the tables of sequences without a computed token
    live_sequences: int
    slack_tokens: int  # slots in the tables of sequences that have no token yet
    deduplicated: int
    evicted: int


class CacheCore(Protocol):
    """What the manager asks of a core. Token arrays are flat, contiguous and int32.

    Made by `(num_blocks, block_tokens, reuse_weight, protected_blocks, record_events=False)`.

    An operation checks everything before it changes anything, so that one that raises has
    changed nothing, and each that changes something checks the conservation of blocks before
    it returns. Operations on a holder that is not live raise UnknownSequenceError; `kind`,
    `group` and `level` out of range raise InvalidArgumentError (limits "from 0 to 4", "from 0
    to 31", "from 0 to 7").
    """

    # --- what there is -------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows by one with every begin, commit, fork, evict, resize, flush, set_group and
        set_expiry, with an append that answers 0 and a release that answers True."""

    @property
    def live_sequences(self) -> int:
        """Holders of kind SEQUENCE."""

    @property
    def ticks(self) -> int:
        """Releases of holders of kind SEQUENCE so far: the clock of evictions."""

    def counts(self) -> tuple[int, ...]:
        """The values of CoreCounts."""

    def highest_used(self) -> int:
        """The highest block that is not FREE; 0 if there is none."""

    def available_blocks(self, group: int, /) -> int:
        """Blocks that a holder of the group can have, once no expectation is in the way.

        free + cached + expected, less what the floors of other groups still lack (floor - in
        use, where positive), and at most the quota of the group less what it has in use; at
        least 0.
        """

    def namespace_group(self, namespace: bytes, /) -> int:
        """The group that the namespace belongs to; -1 while it has neither blocks nor holders."""

    def group_counts(self, group: int, /) -> tuple[int, int]:
        """Blocks of the group that are in use, and those that are CACHED or EXPECTED."""

    # --- lookups -------------------------------------------------------------

    def match(self, namespace: bytes, tokens: Tokens, max_blocks: int, /) -> PrefixMatch:
        """The longest cached prefix of `tokens`, at most `max_blocks` whole blocks."""

    def partial_match(
        self, namespace: bytes, tokens: Tokens, match: PrefixMatch, /
    ) -> tuple[int, int]:
        """A block that goes on like `tokens` behind `match` for a part of its tokens.

        Answers the block and how many of its leading tokens agree, at least 1 and never as far
        as the last of `tokens`; (0, 0) if none is known. It need not be the best one: the last
        block inserted with this parent and first token is remembered, in max(1, num_blocks //
        4) slots by construction. Slot of a parent block (0: a namespace) and a first token:
        ((parent * 2654435761) ^ ((first & 0xffffffff) * 40503)) % 2**32 % slots. What is found
        there is believed after it was compared: indexed, of this parent (and namespace).
        """

    def forgotten_blocks(
        self, namespace: bytes, tokens: Tokens, match: PrefixMatch, max_blocks: int, /
    ) -> int:
        """How many blocks right behind `match` were evicted not long ago."""

    def begins_elsewhere(self, namespace: bytes, tokens: Tokens, /) -> bool:
        """Whether another namespace has the first block of `tokens`, and this one has not."""

    def pending_blocks(self, namespace: bytes, tokens: Tokens, max_blocks: int, /) -> int:
        """The most leading blocks that `tokens` share with what a publishing holder of any kind
        began with and has not computed yet."""

    # --- the life of a holder ------------------------------------------------

    def is_live(self, sequence_id: int, /) -> bool:
        """Whether a holder of any kind has this id."""

    def begin(
        self,
        sequence_id: int,
        namespace: bytes,
        tokens: Tokens,
        publish: bool,
        match: PrefixMatch,
        is_reuse: bool,
        kind: int,
        group: int,
        level: int,
        /,
    ) -> None:
        """Holds the matched blocks and allocates the others for `tokens`, evicting as needed.

        With `is_reuse` the matched blocks count as reused from now on, if the last had no
        holder of any kind. Only sequences may say so. A match of all `tokens` allocates
        nothing.

        Checks in this order: the match is possible (ConservationError), kind, group, level,
        DuplicateSequenceError, InvalidArgumentError("group", group, "<n>, the group of the
        namespace"), the match is in the index (ConservationError), and room for it. Room is
        reckoned as if the hits were held already: those that were CACHED or EXPECTED are in use
        then (for an EXPECT holder: EXPECTED). Spare are free + cached + expected, less what the
        floors of other groups lack. Obtainable is the least of spare; of the free blocks, own
        cached ones and, of every other group, min(its cached, its charged - floor) where
        positive; and of quota - in use - expected; at least 0. OutOfBlocksError(new blocks,
        obtainable) when there are more new blocks; or when hits that were CACHED or EXPECTED go
        into use and spare is negative: floors are safe from holders without new blocks as well.
        """

    def append(self, sequence_id: int, token_id: int, /) -> int:
        """Adds a token and makes sure that it has a slot.

        Answers 0; or 1, the blocks missing, where none is obtainable, and nothing has changed.
        """

    def commit(self, sequence_id: int, computed_tokens: int, /) -> None:
        """Publishes the full blocks of the computed tokens, each once.

        Where the index has a block of the same prefix already, the holder takes that one (and
        raises its level to its own) and frees its own copy.
        """

    def release(self, sequence_id: int, /) -> bool:
        """Ends the holder; False if it is not live. Only sequences advance `ticks`."""

    def fork(self, parent_id: int, child_id: int, /) -> tuple[int, int] | None:
        """Starts a second sequence with the tokens and progress of a live sequence.

        It holds the parent's fully computed blocks, and one of its own for the tokens behind
        them if there are any. Answers that block and the parent's one (source, destination)
        when it has computed tokens, which the caller must copy; else None.

        Checks in this order: UnknownSequenceError(parent_id), also for holders of other kinds;
        DuplicateSequenceError(child_id); InvalidArgumentError("computed_tokens", ..., "at least
        <tokens - 1> (the tokens of sequence <parent_id> but the last)"); OutOfBlocksError(1,
        0).
        """

    def block_table(self, sequence_id: int, /) -> bytes | NDArray[np.int32]:
        """The blocks in order, int32."""

    def tokens(self, sequence_id: int, /) -> bytes | NDArray[np.int32]:
        """The tokens in order, int32, computed or not."""

    def num_tokens(self, sequence_id: int, /) -> int:
        """Tokens, computed or not."""

    def computed_tokens(self, sequence_id: int, /) -> int:
        """Leading tokens whose K and V are written."""

    def exclusive_blocks(self, sequence_id: int, /) -> int:
        """Blocks that have no other holder of any kind."""

    def largest_holders(self, count: int, /) -> tuple[int, ...]:
        """Sequences with the longest block tables; of equal ones those that began earlier."""

    # --- what is kept --------------------------------------------------------

    def set_group(self, group: int, floor_blocks: int, quota_blocks: int, /) -> None:
        """What others must leave to a group, and the most that may be charged to it (-1: all).

        Takes effect with the next blocks that are needed. Raises InvalidArgumentError for
        floor_blocks ("at least 0") and quota_blocks ("at least 0, or -1 for none"). The caller
        sees to it that the floors fit the pool and the quotas.
        """

    def set_expiry(self, level: int, tick: int, /) -> None:
        """Blocks of `level` that were released at `tick` or before rank as level 0. -1: none.

        `level` is from 1 to 7. No expiry falls, and that of a level is not above that of the
        level below it, so that a block never outlives what leads to it: `tick` is from the
        expiry now to that of level - 1 (of level 1: to `ticks`). InvalidArgumentError("level",
        level, "from 1 to 7"), ("tick", tick, "from <low> to <high>").
        """

    def evict(self, count: int, /) -> int:
        """Evicts up to `count` CACHED blocks of any group, floors or not; answers how many.

        InvalidArgumentError("count", count, "at least 0").
        """

    def resize(self, num_blocks: int, /) -> list[tuple[int, int]]:
        """Changes the size of the pool, the null block included.

        Grown: the new blocks are free. Shrunk: blocks are evicted as by `evict` until the
        others fit; then those from `num_blocks` on, in ascending order, go to the lowest free
        block each. Answers these moves in order, (source, destination). Tables, index, rings
        and hints follow; a moved block keeps its place in its ring.

        InvalidArgumentError("num_blocks", num_blocks, "at least 2 (the null block and one
        more)"); OutOfBlocksError(w, num_blocks - 1), where the w blocks that are neither FREE nor
        CACHED do not fit. What follows from the size at construction (slots of hints, memory of
        evictions, `protected_blocks`) stays.
        """

    def flush(self, namespace: bytes | None, /) -> tuple[int, int]:
        """Forgets a namespace (None: all). Answers the blocks freed, and those still held.

        Holders of every kind keep their blocks and publish nothing from now on.
        """

    # --- what happened -------------------------------------------------------

    record_events: bool  # may be changed at any time; what happened before is not told

    def drain_events(self) -> list[CoreEvent]:
        """What happened to the index since the last drain, in order; [] without `record_events`.

        ("stored", namespace, parent or None, blocks, tokens) once per commit that inserts;
        ("removed", blocks) for evictions, one for all that nothing came between; ("cleared",
        namespace or None) per flush; ("moved", moves) per resize that moves.
        """

    def drain_samples(self) -> list[CoreSample]:
        """Measured life of blocks whose id % 64 == 1, in ticks, oldest first; the last 4096.

        (0, published, last released, now) when one is evicted, unless it came to its id by a
        move; (1, last released, 0, now) when a CACHED one is held by a sequence.
        """

    def runs(self) -> list[Run]:
        """Everything in the index, parents before what continues them."""

    def check(self) -> None:
        """Conservation, O(groups)."""

    def audit(self) -> None:
        """Everything against everything."""
