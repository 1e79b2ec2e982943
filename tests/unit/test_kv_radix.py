"""RadixIndex: exact matches, runs, splits, eviction order and its cost."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvcache.errors import ConservationError
from kvcache.eviction import LruPolicy
from kvcache.node import Node
from kvcache.radix import RadixIndex
from kvcache.regret import EvictionMemory

NAMESPACE = b"n"


def array(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


class Tree:
    """An index with a source of block numbers."""

    def __init__(self, block_tokens: int = 2) -> None:
        self.index = RadixIndex(block_tokens, LruPolicy(), EvictionMemory(100))
        self.next_block = 1

    def put(self, tokens: NDArray[np.int32], namespace: bytes = NAMESPACE) -> Node:
        """Inserts whole tokens from the root; answers the locked end."""
        count = tokens.size // self.index.block_tokens
        blocks = np.arange(self.next_block, self.next_block + count, dtype=np.int32)
        self.next_block += count
        node, _ = self.index.insert(namespace, None, tokens, blocks)
        return node

    def cached(self, tokens: NDArray[np.int32], namespace: bytes = NAMESPACE) -> int:
        return self.index.match(namespace, tokens, tokens.size // self.index.block_tokens).blocks


def test_a_match_ends_at_the_last_whole_equal_block() -> None:
    tree = Tree(block_tokens=3)
    tree.put(array(1, 2, 3, 4, 5, 6, 7, 8, 9))
    assert tree.cached(array(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)) == 3
    assert tree.cached(array(1, 2, 3, 4, 5, 0, 7, 8, 9)) == 1
    assert tree.cached(array(1, 2, 0)) == 0
    assert tree.cached(array(1, 2)) == 0
    assert tree.cached(array(1, 2, 3), namespace=b"other") == 0


def test_colliding_hashes_do_not_make_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests serve statistics alone: with all of them equal every answer stays exact."""
    monkeypatch.setattr("kvcache.radix.chain_digest", lambda _previous, _block: 0)
    tree = Tree()
    tree.put(array(1, 2, 3, 4))
    tree.put(array(5, 6, 7, 8))
    assert tree.cached(array(1, 2, 7, 8)) == 1
    assert tree.cached(array(5, 6, 7, 8)) == 2
    assert tree.cached(array(1, 2, 3, 4), namespace=b"other") == 0
    tree.index.audit()


def test_a_known_prefix_is_answered_and_not_inserted_again() -> None:
    tree = Tree()
    tree.put(array(1, 2, 3, 4))
    node, known = tree.index.insert(NAMESPACE, None, array(1, 2, 3, 4, 5, 6), array(11, 12, 13))
    assert known.tolist() == [1, 2]
    assert tree.index.num_blocks == 3
    assert node.blocks[: node.count].tolist() == [13]
    tree.index.audit()


def test_an_insert_that_diverges_inside_a_run_splits_it() -> None:
    tree = Tree()
    first = tree.put(array(1, 1, 2, 2, 3, 3))
    second = tree.put(array(1, 1, 2, 2, 4, 4))
    assert first.parent is second.parent
    assert first.parent is not None
    assert first.parent.count == 2
    assert first.parent.locks == 2
    assert (first.locks, second.locks) == (1, 1)
    tree.index.audit()


def test_a_lone_sequence_extends_its_run_in_place() -> None:
    tree = Tree()
    node = tree.put(array(1, 1))
    for step in range(2, 100):
        same, known = tree.index.insert(NAMESPACE, node, array(step, step), array(step))
        assert same is node
        assert known.size == 0
    assert node.count == 99
    assert len(list(tree.index.nodes())) == 1
    tree.index.audit()


def test_a_run_that_another_sequence_uses_is_not_extended() -> None:
    tree = Tree()
    node = tree.put(array(1, 1))
    match = tree.index.match(NAMESPACE, array(1, 1, 2), 1)
    tree.index.lock(match, is_reuse=True)
    longer, _ = tree.index.insert(NAMESPACE, node, array(2, 2), array(2))
    assert longer is not node
    tree.index.unlock(longer)
    assert tree.index.evictable_blocks == 1, "the other sequence never held the second block"
    tree.index.audit()


def test_locking_part_of_a_run_leaves_its_tail_evictable() -> None:
    tree = Tree()
    tree.index.unlock(tree.put(array(1, 1, 2, 2, 3, 3)))
    match = tree.index.match(NAMESPACE, array(1, 1, 2, 2, 9, 9), 3)
    assert (match.blocks, match.evictable_blocks) == (2, 2)
    _, blocks = tree.index.lock(match, is_reuse=True)
    assert blocks.tolist() == [1, 2]
    assert tree.index.evictable_blocks == 1
    assert tree.index.evict(5).tolist() == [3], "evictable > 0 implies that evict frees"
    assert tree.index.evict(5).tolist() == []
    tree.index.audit()


def test_tails_are_evicted_before_what_leads_to_them() -> None:
    tree = Tree()
    tree.index.unlock(tree.put(array(1, 1, 2, 2, 3, 3)))
    assert [tree.index.evict(1).tolist() for _ in range(3)] == [[3], [2], [1]]
    assert tree.index.num_blocks == 0
    tree.index.audit()


def test_the_least_recently_released_goes_first() -> None:
    tree = Tree()
    ends = [tree.put(array(step, step)) for step in range(4)]
    for end in (ends[2], ends[0], ends[3], ends[1]):
        tree.index.unlock(end)
    match = tree.index.match(NAMESPACE, array(0, 0), 1)
    node, _ = tree.index.lock(match, is_reuse=True)
    tree.index.unlock(node)
    assert [int(tree.index.evict(1)[0]) for _ in range(4)] == [3, 4, 2, 1]


def test_a_parent_that_two_sequences_used_outlives_both_children() -> None:
    tree = Tree()
    first = tree.put(array(1, 1, 2, 2))
    second = tree.put(array(1, 1, 3, 3))
    tree.index.unlock(second)
    assert tree.index.evictable_blocks == 1
    tree.index.unlock(first)
    assert [int(tree.index.evict(1)[0]) for _ in range(3)] == [4, 2, 1]


def test_an_empty_namespace_is_forgotten() -> None:
    tree = Tree()
    for salt in range(50):
        tree.index.unlock(tree.put(array(1, 1), namespace=bytes([salt])))
    assert tree.index.begins_elsewhere(b"new", array(1, 1))
    tree.index.evict(50)
    assert tree.index._roots == {}
    assert not tree.index.begins_elsewhere(b"new", array(1, 1))


def test_dropping_a_namespace_spares_the_others() -> None:
    tree = Tree()
    tree.put(array(1, 1, 2, 2))
    tree.index.unlock(tree.put(array(1, 1, 3, 3)))
    tree.index.unlock(tree.put(array(1, 1), namespace=b"other"))
    assert sorted(tree.index.drop(NAMESPACE).tolist()) == [1, 2, 4]
    assert tree.cached(array(1, 1)) == 0
    assert tree.cached(array(1, 1), namespace=b"other") == 1
    assert (tree.index.num_blocks, tree.index.evictable_blocks) == (1, 1)
    assert tree.index.drop(b"unknown").size == 0
    tree.index.audit()


def test_a_run_gives_back_its_memory_when_it_shrinks() -> None:
    tree = Tree(block_tokens=1)
    node = tree.put(np.arange(1000, dtype=np.int32))
    tree.index.unlock(node)
    tree.index.evict(990)
    assert node.count == 10
    assert node.tokens.size <= 40
    tree.index.audit()


def test_an_audit_finds_a_wrong_lock() -> None:
    tree = Tree()
    node = tree.put(array(1, 1))
    tree.index.audit()
    node.locks = 0
    with pytest.raises(ConservationError, match="misses an unlocked one"):
        tree.index.audit()


def lines_executed(function: Any, *arguments: Any) -> int:
    """Python lines run inside kvcache: a cost that does not depend on the machine."""
    count = 0

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        if "kvcache" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        function(*arguments)
    finally:
        sys.settrace(previous)
    return count


def filled(leaves: int) -> RadixIndex:
    index = RadixIndex(1, LruPolicy(), EvictionMemory(1000))
    for leaf in range(leaves):
        node, _ = index.insert(NAMESPACE, None, array(leaf), array(leaf + 1))
        index.unlock(node)
    return index


@pytest.mark.slow
def test_the_cost_of_an_eviction_does_not_depend_on_the_number_of_leaves() -> None:
    small, large = filled(1_000), filled(100_000)
    cost = lines_executed(small.evict, 1)
    assert 0 < cost < 70
    assert lines_executed(large.evict, 1) == cost


def test_the_cost_of_a_match_does_not_depend_on_the_number_of_blocks() -> None:
    tree = Tree(block_tokens=1)
    tree.put(np.arange(20_000, dtype=np.int32))
    tokens = np.arange(20_000, dtype=np.int32)
    cost = lines_executed(tree.index.match, NAMESPACE, tokens, 10)
    assert lines_executed(tree.index.match, NAMESPACE, tokens, 20_000) == cost


def test_what_was_evicted_behind_a_match_is_counted_when_it_is_asked_for_again() -> None:
    tree = Tree()
    tree.index.unlock(tree.put(array(1, 1, 2, 2, 3, 3, 4, 4)))
    wanted = array(1, 1, 2, 2, 3, 3, 9, 9)

    def forgotten(namespace: bytes = NAMESPACE) -> int:
        match = tree.index.match(namespace, wanted, 4)
        return tree.index.forgotten_blocks(namespace, wanted, match, 4)

    assert forgotten() == 0
    tree.index.evict(2)
    assert forgotten() == 1
    node, _ = tree.index.lock(tree.index.match(NAMESPACE, wanted, 1), is_reuse=True)
    assert forgotten() == 1, "splitting a run changes nothing"
    tree.index.unlock(node)
    tree.index.evict(2)
    assert forgotten() == 3
    assert forgotten(b"other") == 0


def test_the_identity_of_an_evicted_block_is_its_whole_prefix() -> None:
    tree = Tree()
    tree.index.unlock(tree.put(array(1, 1, 2, 2)))
    tree.index.evict(2)
    wanted = array(7, 7, 2, 2)
    tree.put(wanted[:2])
    match = tree.index.match(NAMESPACE, wanted, 2)
    assert tree.index.forgotten_blocks(NAMESPACE, wanted, match, 2) == 0


def test_digests_follow_a_run_that_grows_and_shrinks() -> None:
    tree = Tree(block_tokens=1)
    node = tree.put(array(1, 2, 3))
    tree.index.unlock(node)
    tree.index.evict(1)
    node, _ = tree.index.lock(tree.index.match(NAMESPACE, array(1, 2), 2), is_reuse=False)
    assert node is not None
    tree.index.insert(NAMESPACE, node, array(8, 9), array(8, 9))
    tree.index.unlock(node)
    tree.index.evict(3)
    wanted = array(1, 2, 8, 9)
    match = tree.index.match(NAMESPACE, wanted, 4)
    assert match.blocks == 1
    assert tree.index.forgotten_blocks(NAMESPACE, wanted, match, 4) == 3


def test_the_memory_of_evictions_is_bounded() -> None:
    memory = EvictionMemory(10)
    memory.remember(range(1000))
    assert 10 <= len(memory) <= 20
    assert 999 in memory
    assert 5 not in memory
