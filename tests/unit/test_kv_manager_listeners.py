"""CacheManager: who is told of the index, when, and with what still in memory."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from kv_cores import NewManager
from kv_manager_driver import RED, ByteMemory, begin, request, run, serve, tokens


class Witness:
    """Notes what it is told, with the first byte of each removed block at that moment."""

    def __init__(self, memory: ByteMemory | None = None) -> None:
        self.memory = memory
        self.seen: list[object] = []

    def stored(
        self, namespace: bytes, parent: int | None, blocks: Sequence[int], token_ids: Sequence[int]
    ) -> None:
        self.seen.append(("stored", namespace, parent, tuple(blocks), tuple(token_ids)))

    def removed(self, blocks: Sequence[int]) -> None:
        contents = [self.memory.blocks[block][0] for block in blocks] if self.memory else []
        self.seen.append(("removed", tuple(blocks), contents))

    def cleared(self, namespace: bytes | None) -> None:
        self.seen.append(("cleared", namespace))

    def moved(self, moves: Sequence[tuple[int, int]]) -> None:
        contents = [self.memory.blocks[new][0] for _, new in moves] if self.memory else []
        self.seen.append(("moved", tuple(moves), contents))


def told(witness: Witness) -> list[object]:
    seen, witness.seen = witness.seen, []
    return seen


def test_listeners_are_told_at_once_by_every_operation_that_changes_the_index(
    new_manager: NewManager,
) -> None:
    manager, first, second = new_manager(4, 2), Witness(), Witness()
    serve(manager, request(1, [9, 9]))  # before anybody listens
    manager.add_listener(first)
    manager.add_listener(second)
    begin(manager, request(2, [1, 2, 3, 4]))
    assert told(first) == []
    manager.commit(2, 4)
    assert told(first) == [("stored", RED, None, (2, 3), (1, 2, 3, 4))]
    assert manager.append(2, 5) == 0
    assert told(first) == [("removed", (1,), [])]
    manager.release(2)
    lease = manager.begin_load(RED, tokens([7, 7]), 10)
    assert lease is not None
    assert told(first) == []
    manager.finish_load(lease.lease_id, 2)
    assert told(first) == [("stored", RED, None, (1,), (7, 7))]
    manager.flush(RED)
    assert told(first) == [("cleared", RED)]
    assert len(second.seen) == 4


def test_a_load_that_evicts_tells_it(new_manager: NewManager) -> None:
    manager, witness = new_manager(3, 2), Witness()
    manager.add_listener(witness)
    serve(manager, request(1, [1, 2, 3, 4]))
    told(witness)
    manager.begin_load(RED, tokens([7, 7]), 10)
    assert told(witness) == [("removed", (2,), [])]


def test_what_is_evicted_is_told_while_its_contents_are_there(new_manager: NewManager) -> None:
    memory = ByteMemory(4, 2)
    manager, witness = new_manager(4, 2, memory=memory), Witness(memory)
    manager.add_listener(witness)
    serve(manager, request(1, [1, 2, 3, 4]))
    memory.blocks[1][:], memory.blocks[2][:] = b"\x01\x02", b"\x03\x04"
    told(witness)
    # Block 2 agrees in part; it is evicted for the third new block, after block 3 took its copy.
    assert begin(manager, request(2, [1, 2, 3, 5, 6, 7])) == 3
    assert told(witness) == [("removed", (2,), [3])]
    assert manager.block_table(2).tolist() == [1, 2, 3]
    assert memory.copies == [(2, 2)]
    assert list(memory.blocks[2]) == [3, 4]


def test_a_fork_that_evicts_tells_before_it_copies(new_manager: NewManager) -> None:
    memory = ByteMemory(4, 2)
    manager, witness = new_manager(4, 2, memory=memory), Witness(memory)
    manager.add_listener(witness)
    serve(manager, request(1, [1, 2]))
    memory.blocks[1][:] = b"\x11\x12"
    run(manager, request(2, [3, 4, 5]))
    memory.blocks[3][:] = b"\x55\x00"
    told(witness)
    manager.fork(2, 3)
    assert told(witness) == [("removed", (1,), [0x11])]
    assert memory.copies == [(3, 1)]


def test_moves_are_told_when_the_contents_have_moved(new_manager: NewManager) -> None:
    memory = ByteMemory(9, 2)
    manager, witness = new_manager(9, 2, memory=memory), Witness(memory)
    manager.add_listener(witness)
    serve(manager, request(1, [1, 2, 3, 4]))
    run(manager, request(2, [5, 6]))
    memory.blocks[2][:], memory.blocks[3][:] = b"\x22\x22", b"\x33\x33"
    told(witness)
    manager.resize(3)
    assert told(witness) == [
        ("removed", (2,), [0x22]),
        ("moved", ((3, 2),), [0x33]),
    ]
    manager.audit()


def test_a_listener_that_fails_is_not_hidden(new_manager: NewManager) -> None:
    class Broken(Witness):
        def cleared(self, namespace: bytes | None) -> None:
            raise RuntimeError(f"no room in the log for {namespace!r}")

    manager = new_manager(4, 2)
    manager.add_listener(Broken())
    with pytest.raises(RuntimeError, match="no room"):
        manager.flush(None)
    manager.audit()


def test_others_are_told_and_contents_move_when_a_listener_fails(new_manager: NewManager) -> None:
    class Broken(Witness):
        def removed(self, blocks: Sequence[int]) -> None:
            raise RuntimeError(f"no room in the host tier for {blocks}")

    memory = ByteMemory(9, 2)
    manager, witness = new_manager(9, 2, memory=memory), Witness(memory)
    serve(manager, request(1, [1, 2, 3, 4]))
    run(manager, request(2, [5, 6]))
    memory.blocks[3][:] = b"\x33\x33"
    manager.add_listener(Broken())
    manager.add_listener(witness)
    with pytest.raises(RuntimeError, match="no room"):
        manager.resize(3)
    assert manager.block_table(2).tolist() == [2]
    assert told(witness) == [("removed", (2,), [0]), ("moved", ((3, 2),), [0x33])]
    assert manager.usable_blocks == 2
    manager.audit()


def test_a_copy_that_fails_does_not_keep_others_from_being_made(new_manager: NewManager) -> None:
    class Broken(ByteMemory):
        def copy(self, source: int, destination: int) -> None:
            if source == 4:
                raise RuntimeError("a bad page")
            super().copy(source, destination)

    memory = Broken(9, 2)
    manager = new_manager(9, 2, memory=memory)
    run(manager, request(1, [1, 2]))
    run(manager, request(2, [3, 4]))
    run(manager, request(3, [5, 6, 7, 8, 9, 10]))
    manager.release(1)
    manager.release(2)
    manager.flush(None)
    with pytest.raises(RuntimeError, match="a bad page"):
        manager.resize(4)
    assert memory.copies == [(5, 2)]
    assert manager.block_table(3).tolist() == [3, 1, 2]
    manager.audit()
