"""Replaying the events gives the index, exactly, from any snapshot."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kv_cores import needs_native

from kvcache import AdmissionRequest, CacheManager, Fits
from kvcache.core import CoreChoice
from kvcache.errors import PoolInUseError
from kvcache.events import EventLog, EventsLostError, IndexReplica

NAMESPACES = (b"a", b"b")


@dataclass(frozen=True)
class Size:
    """A step: the pool has so many blocks from now on, if what is held fits."""

    num_blocks: int


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=12).map(tuple)
starts = st.tuples(prompts, st.sampled_from(NAMESPACES), st.integers(0, 12))
flushes = st.sampled_from((None, *NAMESPACES))
sizes = st.integers(2, 24).map(Size)
steps = st.one_of(starts, starts, starts, st.integers(0, 3), flushes, sizes)


@pytest.mark.parametrize("core", ["python", pytest.param("native", marks=needs_native)])
@settings(deadline=None, max_examples=200)
@given(
    st.lists(st.tuples(steps, st.booleans()), max_size=60),
    st.integers(12, 24),
    st.integers(1, 3),
    st.sampled_from([2, 1000, 1000]),
)
def test_replaying_the_events_gives_the_index(
    core: CoreChoice, plan: list[tuple[object, bool]], pool: int, block_tokens: int, capacity: int
) -> None:
    """A step starts a sequence (computing some of it), ends old ones, flushes or resizes.

    The follower looks only now and then, so that the log has sometimes lost events.
    """
    log = EventLog(capacity)
    manager = CacheManager(pool + 1, block_tokens, events=log, core=core)
    replica = IndexReplica(manager.snapshot(), block_tokens)
    live: list[int] = []
    for number, (step, looks) in enumerate(plan):
        if isinstance(step, tuple):
            prompt, namespace, computed = step
            tokens = np.array(prompt, np.int32)
            answer = manager.admit(AdmissionRequest(number, tokens, namespace))
            if isinstance(answer, Fits):
                cached = manager.begin(answer)
                manager.commit(number, max(cached, min(computed, len(prompt))))
                live.append(number)
        elif isinstance(step, int):
            for sequence in live[:step]:
                manager.commit(sequence, manager.num_tokens(sequence))
                manager.release(sequence)
            del live[:step]
        elif isinstance(step, Size):
            with suppress(PoolInUseError):
                manager.resize(step.num_blocks)
        else:
            assert step is None or isinstance(step, bytes)
            manager.flush(step)
        if looks:
            replica = _followed(replica, manager, log, block_tokens)
    replica = _followed(replica, manager, log, block_tokens)
    for step, _ in plan:
        if isinstance(step, tuple):
            prompt, namespace, _ = step
            tokens = np.array([*prompt, *[-1] * block_tokens], np.int32)
            found = replica.match(namespace, tokens)
            assert len(found) * block_tokens == manager.lookup(namespace, tokens)


def _followed(
    replica: IndexReplica, manager: CacheManager, log: EventLog, block_tokens: int
) -> IndexReplica:
    """The replica after all events, which must be what a new snapshot says."""
    fresh = IndexReplica(manager.snapshot(), block_tokens)
    try:
        events = log.since(replica.number)
    except EventsLostError:
        return fresh
    for event in events:
        replica.apply(event)
    assert replica.blocks == fresh.blocks
    assert replica.number == fresh.number
    return replica
