"""Short words for the scenes of unit tests over a `World`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kv_cores import needs_native
from kv_offloads import TieredOperations
from kv_world import Mirror

RED, BLUE, GREEN = b"red", b"blue", b"green"


def letters(text: str, block_tokens: int = 4) -> list[int]:
    """A block of equal tokens for each letter: "ab" and "ac" share their first block."""
    return [ord(letter) for letter in text for _ in range(block_tokens)]


class Scene(TieredOperations):
    """A world in which one line is one life."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.last_id = 0

    def mirror(self, tokens: Sequence[int], namespace: bytes = RED, **fields: object) -> Mirror:
        self.last_id += 1
        return Mirror(self.last_id, namespace, list(tokens), **fields)  # type: ignore[arg-type]

    def run(self, tokens: Sequence[int], namespace: bytes = RED, **fields: object) -> Mirror:
        """Begins a sequence that must fit and computes all of its tokens."""
        mirror = self.mirror(tokens, namespace, **fields)
        assert self.start(mirror)
        self.commit(mirror, len(mirror.tokens))
        return mirror

    def serve(self, tokens: Sequence[int], namespace: bytes = RED, **fields: object) -> Mirror:
        """A whole life that generates nothing."""
        mirror = self.run(tokens, namespace, **fields)
        self.release(mirror)
        return mirror


CORES = ["python", pytest.param("native", marks=needs_native)]
