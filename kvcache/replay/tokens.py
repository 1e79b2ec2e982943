"""Token ids for a trace that tells only which blocks are equal."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvcache.replay.trace import TraceRequest


class PromptMaker:
    """Makes prompts: equal leading hash ids are equal tokens, everything else differs.

    All tokens of a block are the same number: the manager compares tokens and does not care
    how they vary. Ids of a trace may be of any size, so they are numbered as they come.
    """

    def __init__(self, trace_block_tokens: int) -> None:
        self._trace_block_tokens = trace_block_tokens
        self._numbers: dict[int, int] = {}

    def prompt(self, index: int, request: TraceRequest, length_tokens: int) -> NDArray[np.int32]:
        """The first `length_tokens` tokens of request number `index` of the trace, int32."""
        tokens = np.full(length_tokens, own_token(index), np.int32)
        numbers = self._numbers
        ids = [numbers.setdefault(one, len(numbers)) for one in request.hash_ids]
        shared = np.repeat(np.array(ids, np.int32), self._trace_block_tokens)[:length_tokens]
        tokens[: shared.size] = shared
        return tokens


def own_token(index: int) -> int:
    """The token of request `index` that no other request and no hash id has."""
    return -1 - index
