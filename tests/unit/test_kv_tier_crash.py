"""A process is killed while it writes blocks to the disk."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kv_tier_blocks import FINGERPRINT, buffers, contents, keys_of

from kvcache.tiers.disk import DiskTier

KILLS = 8
CAPACITY_BYTES = 150 * 2 * 4096
WRITER = """
import sys
from pathlib import Path
from kv_tier_blocks import FINGERPRINT, contents, keys_of
from kvcache.tiers.disk import DiskTier

tier = DiskTier(Path(sys.argv[1]), FINGERPRINT, int(sys.argv[2]))
first = int(sys.argv[3])
told = False
while True:
    for key in keys_of(40, first_token=first, namespace=b"n"):
        tier.put(key, contents(key))
    if not told:
        told = True
        print("has written", flush=True)
    first += 1000
    if first % 7000 == 0:
        tier.drop_namespace(b"n")
"""


@pytest.mark.slow
def test_after_a_kill_at_any_moment_every_block_is_whole_or_missing(tmp_path: Path) -> None:
    some = random.Random(7)
    read_blocks = 0
    for kill in range(KILLS):
        first = kill * 1_000_000
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), str(CAPACITY_BYTES), str(first)],
            stdout=subprocess.PIPE,
            env={"PYTHONPATH": ":".join(sys.path)},
        )
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"has written\n"
        time.sleep(some.uniform(0.01, 0.25))
        writer.kill()
        writer.wait()
        writer.stdout.close()
        tier = DiskTier(tmp_path, FINGERPRINT, CAPACITY_BYTES)
        stats = tier.stats()
        assert stats.used_bytes is not None
        assert stats.used_bytes <= CAPACITY_BYTES
        assert list((tmp_path / ".plimsoll-incoming").iterdir()) == []
        assert list((tmp_path / ".plimsoll-dropped").iterdir()) == []
        for batch in range(first, first + 200_000, 1000):
            for key in keys_of(40, first_token=batch, namespace=b"n"):
                into = buffers(1)
                if tier.read([key], into):
                    assert bytes(into[0]) == contents(key)
                    read_blocks += 1
        assert tier.stats().faults == {}, "a rename is all or nothing"
        tier.close()
    assert read_blocks > KILLS, "the writers did write"
