"""What the Python core refuses before it changes anything. CacheCore says what in which order."""

from __future__ import annotations

from operator import index

import numpy as np

from kvcache.core.contract import PrefixMatch
from kvcache.core.sequence import Holder
from kvcache.errors import ConservationError, InvalidArgumentError

_INT32 = np.iinfo(np.int32)


def require_in_range(field: str, value: int, end: int) -> None:
    """Refuses what is not one of the numbers 0 .. end - 1."""
    if not 0 <= value < end:
        raise InvalidArgumentError(field, value, f"from 0 to {end - 1}")


def require_at_least(field: str, value: int, least: int) -> None:
    """Refuses less."""
    if value < least:
        raise InvalidArgumentError(field, value, f"at least {least}")


def require_token(token_id: int) -> None:
    """Refuses what the index could not compare."""
    if not _INT32.min <= index(token_id) <= _INT32.max:
        raise InvalidArgumentError("token_id", token_id, "an int32 number")


def require_quota(quota_blocks: int) -> None:
    """Refuses less than no quota at all."""
    if quota_blocks < -1:
        raise InvalidArgumentError("quota_blocks", quota_blocks, "at least 0, or -1 for none")


def require_possible(match: PrefixMatch, most_blocks: int, num_blocks: int) -> None:
    """Refuses a match that no lookup of so many whole blocks can have answered."""
    blocks, evictable, end = match
    if not (0 <= evictable <= blocks <= most_blocks and 0 <= end < num_blocks):
        raise ConservationError("a match names blocks that cannot be")


def require_progress(holder: Holder, computed_tokens: int) -> None:
    """Refuses to compute backwards, and tokens that are not there."""
    if not holder.computed_tokens <= index(computed_tokens) <= len(holder.tokens):
        raise InvalidArgumentError(
            "computed_tokens",
            computed_tokens,
            f"from {holder.computed_tokens} (computed before) to "
            f"{len(holder.tokens)} (the tokens of sequence {holder.holder_id})",
        )


def require_computed(parent: Holder) -> None:
    """Refuses to fork a sequence with more than one token to compute."""
    least = len(parent.tokens) - 1
    if parent.computed_tokens < least:
        limit = f"at least {least} (the tokens of sequence {parent.holder_id} but the last)"
        raise InvalidArgumentError("computed_tokens", parent.computed_tokens, limit)
