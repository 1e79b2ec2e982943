"""RadixIndex: exact matches, hints, namespaces; and the memory of what was evicted."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from kvcache.core.radix import RadixIndex
from kvcache.core.regret import EvictionMemory
from kvcache.errors import ConservationError

NAMESPACE = b"n"


def data(*tokens: int) -> bytes:
    return np.array(tokens, np.int32).tobytes()


class Tree:
    """An index with a source of block numbers; every block has a holder of its namespace."""

    def __init__(self, block_tokens: int = 2, num_blocks: int = 400) -> None:
        self.index = RadixIndex(num_blocks, block_tokens)
        self.size = block_tokens
        self.next_block = 1
        self.holders: Counter[bytes] = Counter()

    def put(self, *tokens: int, namespace: bytes = NAMESPACE) -> list[int]:
        """Inserts what is not there of whole blocks; answers all of them."""
        wanted = data(*tokens)
        self.index.acquire(namespace, 0)
        self.holders[namespace] += 1
        path = self.index.match(namespace, wanted, 1000)
        for number in range(len(path), len(tokens) // self.size):
            block = wanted[4 * self.size * number : 4 * self.size * (number + 1)]
            self.index.insert(self.next_block, namespace, path[-1] if path else namespace, block)
            path.append(self.next_block)
            self.next_block += 1
        self.audit()
        return path

    def leave(self, namespace: bytes = NAMESPACE) -> None:
        """A holder goes."""
        self.holders[namespace] -= 1
        self.holders = +self.holders
        self.index.leave(namespace)

    def cached(self, *tokens: int, namespace: bytes = NAMESPACE) -> list[int]:
        return self.index.match(namespace, data(*tokens), 1000)

    def part(self, *tokens: int, namespace: bytes = NAMESPACE, most: int = 1000) -> tuple[int, int]:
        path = self.index.match(namespace, data(*tokens), most)
        end = path[-1] if path else 0
        return self.index.partial_match(namespace, data(*tokens), len(path), end)

    def audit(self) -> None:
        self.index.audit(self.holders)


def test_a_match_ends_at_the_last_whole_equal_block() -> None:
    tree = Tree(block_tokens=3)
    tree.put(1, 2, 3, 4, 5, 6, 7, 8, 9)
    assert tree.cached(1, 2, 3, 4, 5, 6, 7, 8, 9, 10) == [1, 2, 3]
    assert tree.cached(1, 2, 3, 4, 5, 0, 7, 8, 9) == [1]
    assert tree.cached(1, 2, 0) == []
    assert tree.cached(1, 2) == []
    assert tree.cached(1, 2, 3, namespace=b"other") == []
    assert tree.index.match(NAMESPACE, data(1, 2, 3, 4, 5, 6), 1) == [1]


def test_equal_tokens_behind_another_prefix_are_another_block() -> None:
    tree = Tree()
    assert tree.put(1, 1, 5, 5) == [1, 2]
    assert tree.put(2, 2, 5, 5) == [3, 4]
    assert tree.put(5, 5) == [5]
    assert tree.put(1, 1, 5, 5, namespace=b"other") == [6, 7]
    assert len(tree.index) == 7


def test_colliding_digests_do_not_make_a_hit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Digests serve statistics alone: with all of them equal every answer stays exact."""
    monkeypatch.setattr("kvcache.core.radix.chain_digest", lambda _previous, _block: 0)
    tree = Tree()
    tree.put(1, 2, 3, 4)
    tree.put(5, 6, 7, 8)
    assert tree.cached(1, 2, 7, 8) == [1]
    assert tree.cached(5, 6, 7, 8) == [3, 4]
    assert tree.cached(1, 2, 3, 4, namespace=b"other") == []


def test_the_path_of_a_match_is_compared_again() -> None:
    tree = Tree()
    tree.put(1, 1, 2, 2, 3, 3)
    wanted = data(1, 1, 2, 2, 3, 3)
    assert tree.index.path(NAMESPACE, wanted, 3, 3) == [1, 2, 3]
    assert tree.index.path(NAMESPACE, wanted, 0, 0) == []
    for tokens, blocks, end in (
        (data(1, 1, 2, 2, 3, 9), 3, 3),
        (data(9, 1, 2, 2, 3, 3), 3, 3),
        (wanted, 2, 3),
        (wanted, 3, 2),
        (wanted, 1, 7),
    ):
        with pytest.raises(ConservationError, match="not in the index any more"):
            tree.index.path(NAMESPACE, tokens, blocks, end)
    with pytest.raises(ConservationError, match="of another namespace"):
        tree.index.path(b"other", wanted, 3, 3)
    tree.put(1, 1, 1, 1)
    with pytest.raises(ConservationError, match="of another namespace"):
        tree.index.path(NAMESPACE, data(1, 1), 1, 4)


def test_a_block_leaves_after_all_that_continue_it() -> None:
    tree = Tree()
    tree.put(1, 1, 2, 2)
    tree.put(1, 1, 3, 3)
    for block in (2, 3):
        with pytest.raises(ConservationError, match="block 1 would leave"):
            tree.index.remove(1)
        tree.index.remove(block)
        tree.audit()
    tree.index.remove(1)
    tree.audit()
    assert len(tree.index) == 0


def test_a_namespace_belongs_to_a_group_as_long_as_it_is_needed() -> None:
    tree = Tree()
    index = tree.index
    assert index.group_of(b"red") is None
    index.acquire(b"red", 5)
    index.insert(1, b"red", b"red", data(1, 1))
    index.leave(b"red")
    assert index.group_of(b"red") == 5
    index.remove(1)
    assert index.group_of(b"red") is None
    tree.audit()


def test_an_empty_namespace_is_forgotten() -> None:
    tree = Tree()
    names = [bytes([salt]) for salt in range(50)]
    for name in names:
        tree.put(1, 1, namespace=name)
        tree.leave(name)
    assert tree.index.begins_elsewhere(b"new", data(1, 1))
    assert not tree.index.begins_elsewhere(names[0], data(1, 1))
    assert not tree.index.begins_elsewhere(b"new", data(1, 2))
    for block in range(1, 51):
        tree.index.remove(block)
    assert not tree.index.begins_elsewhere(b"new", data(1, 1))
    assert tree.index._namespaces == {}
    tree.audit()


def test_dropping_a_namespace_spares_the_others() -> None:
    tree = Tree()
    tree.put(1, 1, 2, 2)
    tree.put(1, 1, namespace=b"other")
    tree.put(1, 1, 3, 3)
    assert tree.index.drop(NAMESPACE) == [1, 2, 4]
    assert tree.cached(1, 1) == []
    assert tree.cached(1, 1, namespace=b"other") == [3]
    assert tree.index.drop(b"unknown") == []
    tree.audit()
    assert tree.index.drop(None) == [3]
    tree.audit()


def test_moved_blocks_are_found_under_their_new_numbers() -> None:
    tree = Tree()
    tree.put(1, 1, 2, 2, 3, 3)
    tree.put(1, 1, 4, 4)
    tree.index.rename({1: 11, 3: 13})
    tree.audit()
    assert tree.cached(1, 1, 2, 2, 3, 3) == [11, 2, 13]
    assert tree.index.node(2).parent == 11
    assert tree.part(1, 1, 2, 2, 3, 9, 0) == (13, 1)
    assert [block for block, _ in tree.index.nodes()] == [11, 2, 13, 4]


# --- parts of blocks ---


def test_a_block_that_begins_like_the_rest_is_a_partial_match() -> None:
    tree = Tree(block_tokens=4)
    tree.put(1, 2, 3, 4, 5, 6, 7, 8)
    assert tree.part(1, 2, 3, 4, 5, 6, 9, 9, 9) == (2, 2)
    assert tree.part(1, 2, 9, 9, 9) == (1, 2)
    assert tree.part(1, 9) == (1, 1)
    assert tree.part(9, 2, 3, 4) == (0, 0)
    assert tree.part(1, 2, 3, 4, 6, 6, 7, 8) == (0, 0)
    assert tree.part(1, 2, namespace=b"other") == (0, 0)


def test_the_last_token_is_never_part_of_a_match() -> None:
    tree = Tree(block_tokens=4)
    tree.put(1, 2, 3, 4)
    assert tree.part(1, 2, 3) == (1, 2)
    assert tree.part(1) == (0, 0)
    assert tree.part(1, 2, 3, 4, most=0) == (1, 3)
    assert tree.part(1, 2, 3, 4, 5, most=0) == (1, 4)
    assert tree.part(1, 2, 3, 4) == (0, 0), "nothing is left behind the match"


def test_of_several_continuations_the_last_inserted_is_known() -> None:
    tree = Tree(block_tokens=2)
    tree.put(1, 1, 5, 5)
    tree.put(1, 1, 5, 6)
    assert tree.part(1, 1, 5, 5, 0, most=1) == (3, 1)
    tree.index.remove(3)
    assert tree.part(1, 1, 5, 5, 0, most=1) == (0, 0), "a stale hint is a miss"


def test_a_hint_of_another_parent_or_namespace_is_no_match() -> None:
    """With one slot every lookup finds the block that was inserted last."""
    tree = Tree(block_tokens=2, num_blocks=7)
    tree.put(1, 1, 5, 5)
    assert tree.part(1, 1, 5, 9, 9) == (2, 1)
    assert tree.part(5, 9, 9) == (0, 0)
    tree.put(1, 1, namespace=b"other")
    assert tree.part(1, 1, 5, 9, 9) == (0, 0), "overwritten"
    assert tree.part(1, 9, 9) == (0, 0)
    assert tree.part(1, 9, 9, namespace=b"other") == (3, 1)


def test_hints_have_the_slots_that_the_contract_names() -> None:
    tree = Tree(block_tokens=1, num_blocks=4000)
    tree.put(-7, 3)
    for parent, first in ((0, 2**32 - 7), (1, 3)):
        slot = ((parent * 2654435761) ^ (first * 40503)) % 2**32 % 1000
        assert tree.index._hints[slot] == parent + 1


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("continuations", 0, "the continuations of block 1 are miscounted"),
        ("tokens", data(9, 9), "block 1 is not found by its tokens"),
        ("digest", 0, "block 1 is of another prefix"),
        ("namespace", b"other", "block 1 is of another prefix"),
    ],
)
def test_an_audit_finds_a_wrong_node(field: str, value: object, message: str) -> None:
    tree = Tree()
    tree.put(1, 1, 2, 2)
    setattr(tree.index.node(1), field, value)
    with pytest.raises(ConservationError, match=message):
        tree.audit()


def test_an_audit_finds_a_namespace_without_users() -> None:
    tree = Tree()
    tree.index.acquire(b"red", 0)
    with pytest.raises(ConservationError, match="a namespace is kept without need"):
        tree.audit()


# --- what was evicted ---


def test_the_identity_of_a_block_is_its_whole_prefix() -> None:
    tree = Tree()
    tree.put(1, 1, 2, 2)
    tree.put(7, 7, 2, 2)
    tree.put(1, 1, namespace=b"other")
    digests = [node.digest for _, node in tree.index.nodes()]
    assert len(set(digests)) == len(digests) == 5
    assert tree.index.digest(NAMESPACE, 2) == tree.index.node(2).digest
    assert tree.index.digest(NAMESPACE, None) != tree.index.digest(b"other", None)


def test_the_memory_of_evictions_is_bounded() -> None:
    memory = EvictionMemory(10)
    for digest in range(1000):
        memory.remember(digest)
    assert 10 <= len(memory) <= 20
    assert 999 in memory
    assert 5 not in memory
