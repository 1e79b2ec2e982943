"""CacheManager: what sequences share, and what ends that."""

from __future__ import annotations

import numpy as np
import pytest
from kv_cores import NewManager
from kv_manager_driver import BLUE, RED, begin, request, run, serve

from kvcache import Fits, FlushResult

# --- namespaces ---


def test_only_one_namespace_shares(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    serve(manager, request(1, range(9), RED))
    assert serve(manager, request(2, range(9), BLUE)) == 0
    assert serve(manager, request(3, range(9), RED)) == 8
    assert serve(manager, request(4, range(9), BLUE)) == 8


# --- flush ---


def test_a_flush_drops_what_is_cached_and_leaves_live_sequences_their_blocks(
    new_manager: NewManager,
) -> None:
    manager = new_manager(20, 4)
    serve(manager, request(1, range(16)))
    run(manager, request(2, [*range(8), 50, 51]))
    table = manager.block_table(2).tolist()
    assert manager.flush(RED) == FlushResult(dropped_blocks=2, kept_blocks=2)
    assert manager.block_table(2).tolist() == table
    assert manager.lookup(RED, np.arange(16, dtype=np.int32)) == 0
    manager.audit()
    # What is computed now rests on what was flushed: it is never shared.
    for token in range(8):
        assert manager.append(2, token) == 0
    manager.commit(2, 18)
    assert manager.lookup(RED, np.array([*range(8), 50, 51, *range(8)], np.int32)) == 0
    manager.release(2)
    assert manager.stats().free == 19
    manager.audit()


def test_a_flush_of_one_namespace_spares_the_others(new_manager: NewManager) -> None:
    manager = new_manager(20, 4)
    serve(manager, request(1, range(9), RED))
    run(manager, request(2, range(9), BLUE))
    assert manager.flush(RED) == FlushResult(2, 0)
    assert manager.lookup(BLUE, np.arange(9, dtype=np.int32)) == 8
    manager.append(2, 1)
    assert manager.flush(None) == FlushResult(0, 2)
    manager.release(2)
    assert manager.stats().cached == 0


# --- pending prefixes ---


def test_a_prefix_that_is_being_computed_is_worth_waiting_for(new_manager: NewManager) -> None:
    manager = new_manager(40, 4)
    waiting = request(2, [*range(16), 99])
    assert manager.pending_prefix(waiting) == 0
    begin(manager, request(1, range(18)))
    assert manager.pending_prefix(waiting) == 16
    assert manager.pending_prefix(request(2, [*range(6), 99, 99, 99])) == 4
    assert manager.pending_prefix(request(2, range(16))) == 12, "the last token is not shared"
    assert manager.pending_prefix(request(2, [*range(16), 99], BLUE)) == 0
    assert manager.pending_prefix(request(2, [*range(16), 99], use_cache=False)) == 0
    manager.commit(1, 12)
    assert manager.pending_prefix(waiting) == 16
    manager.commit(1, 16)
    assert manager.pending_prefix(waiting) == 0
    assert manager.admit(waiting) == Fits(16, 1, plan=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("end", ["release", "flush"])
def test_nobody_waits_for_a_prefill_that_will_not_publish(
    new_manager: NewManager, end: str
) -> None:
    manager = new_manager(40, 4)
    begin(manager, request(1, range(16)))
    begin(manager, request(3, range(16), publish=False))
    manager.release(1) if end == "release" else manager.flush(RED)
    assert manager.pending_prefix(request(2, range(16))) == 0
