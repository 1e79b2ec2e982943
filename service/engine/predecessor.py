"""What a new engine takes over from the one that it replaces: how large it was.

A neighbour may have the memory of a dead engine before the next one has started. Sized by what is
left then, that one could serve less than was promised to the streams that go on in it, and would
stay as small when the neighbour has left. So it takes the sizes over, and begins with as much of
the pool as there is room for.
"""

from __future__ import annotations

import msgspec

# How the front tells them to an engine, as JSON; not set for the first one.
PREDECESSOR_VARIABLE = "PLIMSOLL_ENGINE_PREDECESSOR"


class Predecessor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of an engine that was ready; blocks are usable ones, the null block left out."""

    blocks: int  # that its pool had at the start, or that were ordered since
    max_blocks: int  # that its pool could grow to
    context_tokens: int  # the longest that it served, prompt and output together
