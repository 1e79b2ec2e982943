"""The disk tier: found again after a restart, bounded, and never a wrong byte."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest
from kv_tier_blocks import (
    BLOCK_BYTES,
    FINGERPRINT,
    OTHER_FINGERPRINT,
    contents,
    keys_of,
    put_all,
    read,
)

from kvcache.tiers import BlockKey, TierError
from kvcache.tiers.disk import DiskTier
from kvcache.tiers.disk_files import room_bytes
from kvcache.tiers.entry import EntryFault, encode_head, head_bytes

ROOM = room_bytes(head_bytes(keys_of(1)[0]) + BLOCK_BYTES)  # of one file
Open = Callable[..., AbstractContextManager[DiskTier]]


@pytest.fixture
def disk(tmp_path: Path) -> Open:
    """Opens the one folder, as a process does that starts and ends."""

    @contextmanager
    def opened(files: int = 100, fingerprint: bytes = FINGERPRINT) -> Iterator[DiskTier]:
        tier = DiskTier(tmp_path / "kv", fingerprint, files * ROOM)
        try:
            yield tier
            assert tier.stats().used_bytes <= files * ROOM
            assert used_bytes(tmp_path) == tier.stats().used_bytes
        finally:
            tier.close()

    return opened


def block_paths(root: Path) -> list[Path]:
    return sorted(root.rglob("*.kv"))


def used_bytes(root: Path) -> int:
    return sum(room_bytes(path.stat().st_size) for path in block_paths(root))


def path_of(root: Path, key: BlockKey) -> Path:
    return next(path for path in block_paths(root) if path.stem == key.digest.hex())


def test_blocks_are_there_after_a_restart(disk: Open) -> None:
    keys = keys_of(5)
    with disk() as tier:
        put_all(tier, keys)
    with disk() as tier:
        assert tier.leading_hits(keys) == 5
        assert read(tier, keys) == 5
        assert tier.stats().entries == 5


def test_the_least_recently_used_go_first_and_the_order_survives_a_restart(disk: Open) -> None:
    keys = keys_of(4)
    with disk(files=3) as tier:
        put_all(tier, keys[:3])
        for place, path in enumerate(path_of(tier._root, key) for key in keys[:3]):
            os.utime(path, (1000 + place, 1000 + place))
        assert read(tier, keys[:1]) == 1
    with disk(files=3) as tier:
        put_all(tier, keys[3:])
        assert [tier.leading_hits([key]) for key in keys] == [1, 0, 1, 1]
        assert tier.stats().evicted_blocks == 1


def test_a_smaller_bound_is_enforced_at_the_start_oldest_first(disk: Open) -> None:
    keys = keys_of(6)
    with disk() as tier:
        put_all(tier, keys)
        for place, key in enumerate(keys):
            os.utime(path_of(tier._root, key), (1000 + place, 1000 + place))
    with disk(files=2) as tier:
        assert [tier.leading_hits([key]) for key in keys] == [0, 0, 0, 0, 1, 1]


def test_files_of_other_weights_are_never_read_count_and_go_first(disk: Open) -> None:
    theirs = keys_of(2, fingerprint=OTHER_FINGERPRINT)
    mine = keys_of(3, first_token=500)
    with disk(files=4, fingerprint=OTHER_FINGERPRINT) as tier:
        put_all(tier, theirs)
    with disk(files=4) as tier:
        assert tier.leading_hits(theirs) == 0
        assert read(tier, theirs) == 0
        assert tier.stats().used_bytes == 2 * ROOM
        put_all(tier, mine)
        assert read(tier, mine) == 3
        assert tier.stats().evicted_blocks == 1
    with disk(files=4, fingerprint=OTHER_FINGERPRINT) as tier:
        assert sum(tier.leading_hits([key]) for key in theirs) == 1, "one was in nobody's way"


def flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (flip_last, EntryFault.CORRUPT),
        (lambda data: data[:-1], EntryFault.TRUNCATED),
        (lambda data: data[:0], EntryFault.TRUNCATED),
        (lambda data: data + b"x", EntryFault.CORRUPT),
        (lambda data: bytes(len(data)), EntryFault.CORRUPT),
        (
            lambda data: (
                encode_head(OTHER_FINGERPRINT, keys_of(2)[1], data[-BLOCK_BYTES:])
                + data[-BLOCK_BYTES:]
            ),
            EntryFault.FOREIGN,
        ),
        (
            lambda data: (
                encode_head(FINGERPRINT, keys_of(1)[0], data[-BLOCK_BYTES:]) + data[-BLOCK_BYTES:]
            ),
            EntryFault.DIFFERENT_TOKENS,
        ),
    ],
)
def test_a_wrong_file_is_a_counted_miss_and_is_removed(
    disk: Open, damage: Callable[[bytes], bytes], fault: EntryFault
) -> None:
    keys = keys_of(3)
    with disk() as tier:
        put_all(tier, keys)
        path = path_of(tier._root, keys[1])
        size = path.stat().st_size
        path.write_bytes(damage(path.read_bytes()))
        assert read(tier, keys) == 1
        assert tier.stats().faults == {fault: 1}
        assert not path.exists()
        assert tier.leading_hits(keys) == 1
        put_all(tier, keys)
        assert path.stat().st_size == size
        assert read(tier, keys) == 3


def test_a_file_that_somebody_deleted_is_a_miss(disk: Open) -> None:
    keys = keys_of(2)
    with disk() as tier:
        put_all(tier, keys)
        path_of(tier._root, keys[0]).unlink()
        assert read(tier, keys) == 0
        assert tier.stats().faults == {}
        put_all(tier, keys)
        assert read(tier, keys) == 2


def test_leftovers_of_a_killed_process_are_removed_and_strangers_are_not(
    disk: Open, tmp_path: Path
) -> None:
    with disk() as tier:
        put_all(tier, keys_of(1))
    root = tmp_path / "kv"
    (root / ".plimsoll-incoming" / "17").write_bytes(b"half a block")
    (root / ".plimsoll-dropped" / "3").mkdir()
    strangers = [root / "notes.txt", root / "photos" / "a.kv", root / "xy.kv"]
    for stranger in strangers:
        stranger.parent.mkdir(exist_ok=True)
        stranger.write_bytes(b"not ours")
    tier = DiskTier(root, FINGERPRINT, ROOM)
    assert list((root / ".plimsoll-incoming").iterdir()) == []
    assert list((root / ".plimsoll-dropped").iterdir()) == []
    assert tier.stats().used_bytes == ROOM
    put_all(tier, keys_of(1, first_token=900))
    assert all(stranger.exists() for stranger in strangers)
    tier.close()


def test_namespaces_are_apart_and_a_dropped_one_stays_away(disk: Open) -> None:
    mine, yours = keys_of(3, namespace=b"me"), keys_of(3, namespace=b"you")
    with disk() as tier:
        put_all(tier, mine)
        assert read(tier, yours) == 0
        put_all(tier, yours)
        tier.drop_namespace(b"me")
        tier.drop_namespace(b"nobody")
        assert tier.leading_hits(mine) == read(tier, mine) == 0
        assert read(tier, yours) == 3
    with disk() as tier:
        assert tier.leading_hits(mine) == 0
        assert read(tier, yours) == 3
        tier.clear()
        assert tier.leading_hits(yours) == 0
    with disk() as tier:
        assert tier.stats().entries == 0


def test_clearing_leaves_the_files_of_others(disk: Open) -> None:
    theirs = keys_of(2, fingerprint=OTHER_FINGERPRINT)
    with disk(fingerprint=OTHER_FINGERPRINT) as tier:
        put_all(tier, theirs)
    with disk() as tier:
        put_all(tier, keys_of(2))
        tier.clear()
        assert tier.stats().used_bytes == 2 * ROOM
    with disk(fingerprint=OTHER_FINGERPRINT) as tier:
        assert read(tier, theirs) == 2


def test_a_put_that_a_drop_overtakes_does_not_come_in_after_it(
    disk: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keys_of(1, namespace=b"me")[0]
    with disk() as tier:
        real = os.write

        def write(descriptor: int, data: memoryview) -> int:
            monkeypatch.setattr(os, "write", real)
            dropper = threading.Thread(target=tier.drop_namespace, args=(b"me",))
            dropper.start()
            dropper.join()
            return real(descriptor, data)

        monkeypatch.setattr(os, "write", write)
        tier.put(key, contents(key))
        assert tier.leading_hits([key]) == 0
        assert tier.stats().used_bytes == 0
        assert block_paths(tier._root) == []


FULL = Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def test_a_tier_on_a_full_disk_makes_room_for_the_next_block_and_has_not_failed(
    disk: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(3)
    with disk() as tier:
        put_all(tier, keys[:2])
        monkeypatch.setattr(os, "write", FULL)
        assert not tier.put(keys[2], contents(keys[2]))
        monkeypatch.undo()
        assert list((tier._root / ".plimsoll-incoming").iterdir()) == []
        assert tier.leading_hits(keys) == 0  # the oldest went
        assert read(tier, keys[1:2]) == 1
        put_all(tier, keys)
        assert read(tier, keys) == 3


def test_a_disk_full_of_other_things_is_a_tier_error_that_leaves_nothing_behind(
    disk: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = keys_of(1)
    with disk() as tier:
        monkeypatch.setattr(os, "write", FULL)
        with pytest.raises(TierError, match="No space left"):
            tier.put(keys[0], contents(keys[0]))
        monkeypatch.undo()
        assert list((tier._root / ".plimsoll-incoming").iterdir()) == []
        assert tier.stats().used_bytes == 0
        put_all(tier, keys)
        assert read(tier, keys) == 1


def test_a_write_in_small_pieces_is_whole(disk: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    with disk() as tier:
        put_all(tier, keys_of(1))
        assert read(tier, keys_of(1)) == 1


def test_a_block_larger_than_the_tier_is_refused(disk: Open) -> None:
    with disk(files=1) as tier:
        big = keys_of(1)[0]
        assert not tier.put(big, bytes(ROOM))
        assert tier.stats().used_bytes == 0


def test_what_is_no_file_is_not_a_block_whatever_its_name(disk: Open, tmp_path: Path) -> None:
    keys = keys_of(3)
    with disk() as tier:
        put_all(tier, keys)
    paths = [path_of(tmp_path, key) for key in keys]
    for path in paths:
        path.unlink()
    os.mkfifo(paths[0])  # an open would wait for a writer
    paths[1].mkdir()
    paths[2].symlink_to(tmp_path / "kv" / ".plimsoll-lock")
    tier = DiskTier(tmp_path / "kv", FINGERPRINT, 100 * ROOM)
    assert tier.stats().entries == 0
    assert tier.stats().used_bytes == 0
    assert all(path.is_symlink() or path.exists() for path in paths)
    tier.close()


def test_a_folder_that_became_a_file_is_a_tier_error_and_takes_no_room(tmp_path: Path) -> None:
    key = keys_of(1)[0]
    tier = DiskTier(tmp_path / "kv", FINGERPRINT, 100 * ROOM)
    shutil.rmtree(tmp_path / "kv")
    (tmp_path / "kv").write_text("in the way")
    with pytest.raises(TierError):
        tier.put(key, contents(key))
    assert tier.stats().used_bytes == 0
    tier.close()


def test_a_folder_that_the_tier_makes_is_nobody_elses(disk: Open, tmp_path: Path) -> None:
    with disk():
        assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700


def test_a_folder_has_one_owner(disk: Open) -> None:
    with disk() as tier, pytest.raises(TierError, match="owned by another"):
        DiskTier(tier._root, FINGERPRINT, ROOM)
    with disk() as tier:
        put_all(tier, keys_of(1))


def test_a_folder_that_cannot_be_made_is_a_tier_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TierError):
        DiskTier(tmp_path / "file" / "kv", FINGERPRINT, ROOM)
