"""Exceptions of the cache manager. Each carries the facts it reports as attributes."""

from __future__ import annotations

from dataclasses import dataclass


class KVCacheError(Exception):
    """Base of every error that this package raises on purpose."""


class InvalidArgumentError(KVCacheError, ValueError):
    """An argument is outside its domain; names the field, the value and the limit."""

    def __init__(self, field: str, value: object, limit: str) -> None:
        super().__init__(f"{field} is {value!r}, but must be {limit}")
        self.field = field
        self.value = value
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Transition:
    """One recorded step in the life of a block."""

    serial: int  # of the pool operation, counted from 1
    operation: str
    actor: str

    def __str__(self) -> str:
        return f"#{self.serial} {self.operation} by {self.actor}"


class IllegalTransitionError(KVCacheError):
    """An operation that the state of a block forbids, such as a double free.

    Raised at the offender, before anything has changed. `history` is what happened to the
    block most recently, oldest first; it is empty when the record no longer reaches back
    that far. `holder` names the sequence that holds the block where exactly one does.
    """

    def __init__(
        self,
        *,
        block: int,
        state: str,
        operation: str,
        actor: str,
        reason: str,
        holder: str | None,
        history: tuple[Transition, ...],
    ) -> None:
        past = "; ".join(map(str, history)) or "nothing recorded"
        owner = f", held by {holder}" if holder is not None else ""
        super().__init__(
            f"{operation} of block {block} by {actor}: {reason} "
            f"(block is {state}{owner}; history: {past})"
        )
        self.block = block
        self.state = state
        self.operation = operation
        self.actor = actor
        self.reason = reason
        self.holder = holder
        self.history = history


class OutOfBlocksError(KVCacheError):
    """More blocks are wanted than can be had; nothing was taken.

    `free_blocks` counts what eviction would free with the ones that are free already.
    """

    def __init__(self, wanted_blocks: int, free_blocks: int) -> None:
        super().__init__(f"{wanted_blocks} blocks are wanted, {free_blocks} can be had")
        self.wanted_blocks = wanted_blocks
        self.free_blocks = free_blocks


class ConservationError(KVCacheError):
    """The books do not balance: a block was lost, or counted twice."""


class UnknownSequenceError(KVCacheError):
    """No live sequence has this id."""

    def __init__(self, sequence_id: int) -> None:
        super().__init__(f"sequence {sequence_id} holds no blocks here")
        self.sequence_id = sequence_id


class DuplicateSequenceError(KVCacheError):
    """A live sequence has this id already."""

    def __init__(self, sequence_id: int) -> None:
        super().__init__(f"sequence {sequence_id} is live already")
        self.sequence_id = sequence_id


class StalePlanError(KVCacheError):
    """The cache changed after `admit` answered Fits, and the request fits no more."""

    def __init__(self, sequence_id: int, short_blocks: int) -> None:
        super().__init__(
            f"the plan for sequence {sequence_id} is stale: now {short_blocks} blocks short"
        )
        self.sequence_id = sequence_id
        self.short_blocks = short_blocks


class PoolInUseError(KVCacheError):
    """The pool cannot shrink that far: what is held does not fit. Nothing was changed."""

    def __init__(self, wanted_blocks: int, in_use_blocks: int) -> None:
        super().__init__(
            f"a pool of {wanted_blocks} blocks is wanted, {in_use_blocks} blocks are in use"
        )
        self.wanted_blocks = wanted_blocks  # the null block left out, as in the next
        self.in_use_blocks = in_use_blocks


class NativeCoreMissingError(KVCacheError):
    """The native core was demanded and cannot be loaded: it was not built, or not for this host."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the native core of kvcache cannot be loaded: {reason}")
        self.reason = reason


class ArenaError(KVCacheError):
    """The memory of the pool cannot be had, or cannot be given back yet."""

    def __init__(self, size_bytes: int, reason: str) -> None:
        super().__init__(f"KV arena of {size_bytes} bytes: {reason}")
        self.size_bytes = size_bytes
        self.reason = reason


class MemoryShortError(ArenaError):
    """The pool cannot grow: the machine or the control group has too little memory left."""

    def __init__(
        self, size_bytes: int, wanted_bytes: int, available_bytes: int, headroom_bytes: int
    ) -> None:
        super().__init__(
            size_bytes,
            f"cannot grow by {wanted_bytes} bytes: {available_bytes} are available, of which "
            f"{headroom_bytes} must stay",
        )
        self.wanted_bytes = wanted_bytes
        self.available_bytes = available_bytes
        self.headroom_bytes = headroom_bytes
