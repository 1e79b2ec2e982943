"""Holds with a deadline: pins of a prefix, loads into blocks, stores out of blocks.

Whatever is held on behalf of something that may never come back (a client that pinned, a
transfer that was lost) is held until a deadline and not a moment longer. What comes in after
that is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_Table = Callable[[], NDArray[np.int32]]


@dataclass(frozen=True, slots=True)
class Pin:
    """A cached prefix that is not evicted before `expires_at_seconds`."""

    pin_id: int
    tokens: int  # held, whole blocks; 0: nothing of it was cached, and the pin is over already
    expires_at_seconds: float  # on the manager's clock


@dataclass(frozen=True, slots=True)
class LoadLease:
    """Blocks to be filled from outside by `expires_at_seconds`, behind a cached prefix.

    They are LOADING: nobody else sees them until `finish_load`. Who writes must stop at the
    deadline, for then the blocks are given to others.
    """

    lease_id: int
    first_block_index: int  # of `blocks` in the prefix; the blocks before it are cached
    expires_at_seconds: float  # on the manager's clock
    _table: _Table = field(repr=False, compare=False)

    @property
    def blocks(self) -> NDArray[np.int32]:
        """The blocks to fill, in order; a resize may move them, so read them when needed.

        Raises UnknownSequenceError when the lease is over.
        """
        return self._table()[self.first_block_index :]


@dataclass(frozen=True, slots=True)
class StoreLease:
    """A cached prefix that is being copied out and stays unchanged until the lease ends."""

    lease_id: int
    tokens: int  # held, whole blocks
    expires_at_seconds: float  # on the manager's clock
    _table: _Table = field(repr=False, compare=False)

    @property
    def blocks(self) -> NDArray[np.int32]:
        """The blocks of the prefix, in order; a resize may move them, so read them when needed.

        Raises UnknownSequenceError when the lease is over.
        """
        return self._table()
