"""A core by itself, without the manager, for tests of what every core promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcache.core import NO_MATCH, CacheCore, CoreChoice, CoreCounts, HolderKind, create_core
from kvcache.errors import KVCacheError


def array(tokens: Sequence[int]) -> NDArray[np.int32]:
    """As a core wants its tokens."""
    return np.array(tokens, np.int32)


class CoreDriver:
    """Starts holders with a match made at once, and shows what there is."""

    def __init__(self, choice: CoreChoice, num_blocks: int, block_tokens: int = 2) -> None:
        name, self.core = create_core(
            choice, num_blocks, block_tokens, "reuse-aware", record_events=True
        )
        assert name == choice
        self.size = block_tokens
        self.next_id = 1

    def begin(
        self,
        tokens: Sequence[int],
        kind: HolderKind = HolderKind.SEQUENCE,
        *,
        namespace: bytes = b"",
        group: int = 0,
        level: int = 0,
        publish: bool = True,
        is_reuse: bool = True,
        use_cache: bool = True,
        whole: bool = False,
    ) -> int:
        """Answers the id. A `whole` match may go up to the last token."""
        ids, holder_id = array(tokens), self.next_id
        most = (len(tokens) - (not whole)) // self.size
        match = self.core.match(namespace, ids, most) if use_cache else NO_MATCH
        arguments = holder_id, namespace, ids, publish, match, is_reuse
        self.core.begin(*arguments, kind, group, level)
        self.next_id += 1
        return holder_id

    def start(self, tokens: Sequence[int], **options: Any) -> int:
        """A sequence that has computed its tokens."""
        holder_id = self.begin(tokens, **options)
        self.core.commit(holder_id, len(tokens))
        return holder_id

    def use(self, tokens: Sequence[int], **options: Any) -> None:
        """A sequence from its begin to its end."""
        self.core.release(self.start(tokens, **options))

    def keep(self, tokens: Sequence[int], kind: HolderKind, **options: Any) -> int:
        """A holder of what is cached of whole blocks of tokens."""
        return self.begin(tokens, kind, is_reuse=False, whole=True, **options)

    def cached(self, tokens: Sequence[int], namespace: bytes = b"") -> int:
        """Blocks that match."""
        return self.core.match(namespace, array(tokens), 1000)[0]

    def table(self, holder_id: int) -> list[int]:
        """The blocks of a holder."""
        table: list[int] = np.frombuffer(self.core.block_table(holder_id), np.int32).tolist()
        return table

    def counts(self) -> CoreCounts:
        """By name."""
        return CoreCounts(*self.core.counts())

    def states(self) -> dict[str, int]:
        """The states that blocks are in."""
        counts = self.counts()._asdict()
        names = ("free", "cached", "expected", "held", "pinned", "loading", "storing")
        return {name: counts[name] for name in names if counts[name]}

    def everything(self) -> object:
        """What must be as before when an operation was refused."""
        core: CacheCore = self.core
        core.audit()
        holders = [number for number in range(1, self.next_id) if core.is_live(number)]
        of_holders = [(self.table(h), core.num_tokens(h), core.computed_tokens(h)) for h in holders]
        groups = [(core.available_blocks(g), core.group_counts(g)) for g in range(3)]
        return of_holders, self.counts(), core.version, core.ticks, core.runs(), groups

    def refused(self, error: type[KVCacheError], action: Callable[[], object]) -> KVCacheError:
        """The refusal of something, which has changed nothing."""
        before = self.everything()
        with pytest.raises(error) as caught:
            action()
        assert self.everything() == before
        return caught.value


NewCore = Callable[..., CoreDriver]
