"""How the settings become a manager with tiers below it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kvcache import AdmissionRequest, Arena, CacheManager, Fits, KVDtype, KVLayout
from kvcache.memory import ArenaMemory
from kvcache.tiers import Fingerprint, TierError
from kvcache.tiers.host import HostTier
from service.config import EngineSettings
from service.config.about import MIB
from service.config.tenants import TenantPercent
from service.engine.build import weights_identity
from service.engine.caching import make_manager, make_offload
from service.engine.errors import StartError
from service.engine.tenancy import shares_in_blocks
from service.models.source import ModelKind, ModelSource, contents_digest

LAYOUT = KVLayout(1, 1, 1, 16, KVDtype.FLOAT32)
FINGERPRINT = Fingerprint("fake", "none", LAYOUT)


@pytest.fixture
def memory() -> Iterator[ArenaMemory]:
    arena = Arena(LAYOUT, 9)
    yield ArenaMemory(arena)
    arena.close()


def manager_of(settings: EngineSettings, memory: ArenaMemory) -> CacheManager:
    return make_manager(settings, 9, memory)


def test_tiers_are_off_without_a_host_tier(memory: ArenaMemory) -> None:
    settings = EngineSettings(host_cache_bytes=0)
    assert make_offload(settings, manager_of(settings, memory), memory, FINGERPRINT) is None


def test_a_host_tier_of_less_than_a_block_is_a_failed_start(memory: ArenaMemory) -> None:
    settings = EngineSettings(host_cache_bytes=LAYOUT.block_bytes - 1)
    said = rf"host_cache_bytes = {LAYOUT.block_bytes - 1}: .* {LAYOUT.block_bytes} bytes"
    with pytest.raises(StartError, match=said):
        make_offload(settings, manager_of(settings, memory), memory, FINGERPRINT)


@pytest.mark.parametrize(("affordable_blocks", "host_blocks"), [(-1, 0), (0, 0), (3, 3), (7, 5)])
def test_the_host_tier_leaves_memory_for_the_pool_which_has_not_taken_its_own(
    memory: ArenaMemory,
    monkeypatch: pytest.MonkeyPatch,
    affordable_blocks: int,
    host_blocks: int,
) -> None:
    pool_blocks = 9
    available_bytes = 512 * MIB + (pool_blocks + affordable_blocks) * LAYOUT.block_bytes
    monkeypatch.setattr("service.engine.caching.available_memory_bytes", lambda: available_bytes)
    settings = EngineSettings(host_cache_bytes=5 * LAYOUT.block_bytes)
    offload = make_offload(settings, manager_of(settings, memory), memory, FINGERPRINT)
    assert (0 if offload is None else offload.host_room_blocks) == host_blocks
    if offload is not None:
        offload.close()


def test_a_folder_that_cannot_be_used_is_a_failed_start(
    memory: ArenaMemory, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    settings = EngineSettings(host_cache_bytes=1 << 20, disk_cache_folder=str(file))
    with pytest.raises(StartError, match=r"disk_cache_folder: disk tier: .*file"):
        make_offload(settings, manager_of(settings, memory), memory, FINGERPRINT)


def test_a_replacement_starts_without_the_tier_that_cannot_be_opened(
    memory: ArenaMemory, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    settings = EngineSettings(host_cache_bytes=1 << 20, disk_cache_folder=str(file))
    offload = make_offload(
        settings, manager_of(settings, memory), memory, FINGERPRINT, is_replacement=True
    )
    assert offload is not None
    stats = offload.stats()
    offload.close()
    assert stats.disk is None
    (told,) = caplog.messages
    assert told.startswith("cache tier left out: disk_cache_folder: disk tier: ")


def test_a_replacement_starts_without_memory_for_the_host_tier(
    memory: ArenaMemory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(block_bytes: int, capacity_bytes: int) -> HostTier:
        raise TierError(HostTier.name, f"{capacity_bytes // block_bytes} blocks cannot be mapped")

    monkeypatch.setattr("service.engine.caching.HostTier", refuse)
    settings = EngineSettings(host_cache_bytes=1 << 20)
    manager = manager_of(settings, memory)
    assert make_offload(settings, manager, memory, FINGERPRINT, is_replacement=True) is None
    assert caplog.messages == [
        "cache tier left out: host_cache_bytes: host tier: 8192 blocks cannot be mapped"
    ]
    with pytest.raises(StartError, match="host_cache_bytes: host tier: "):
        make_offload(settings, manager, memory, FINGERPRINT)


@pytest.mark.parametrize("url", ["http://host", "redis://user:secret@host:port/0"])
def test_a_remote_url_that_is_none_is_a_failed_start(memory: ArenaMemory, url: str) -> None:
    pytest.importorskip("redis")
    settings = EngineSettings(host_cache_bytes=1 << 20, remote_cache_url=url)
    with pytest.raises(StartError, match="remote_cache_url: redis tier: ") as caught:
        make_offload(settings, manager_of(settings, memory), memory, FINGERPRINT)
    assert "secret" not in str(caught.value)


def test_retention_of_priorities_ends(memory: ArenaMemory) -> None:
    """Blocks of a higher level outlast others, until their time is over."""

    def survivor(idle_seconds: float) -> int:
        now_seconds = 0.0
        settings = EngineSettings(priority_cache_seconds=60.0)
        manager = make_manager(settings, 9, memory, clock=lambda: now_seconds)
        prompts = [np.full(49, number, np.int32) for number in (1, 2, 3)]
        for number, retention in ((1, 3), (2, 0)):
            request = AdmissionRequest(number, prompts[number - 1], b"", retention=retention)
            fits = manager.admit(request)
            assert isinstance(fits, Fits)
            manager.begin(fits)
            manager.commit(number, 49)
            manager.release(number)
            now_seconds += idle_seconds
        manager.expire()
        fits = manager.admit(AdmissionRequest(3, prompts[2], b""))
        assert isinstance(fits, Fits)
        manager.begin(fits)
        hits = [manager.lookup(b"", tokens) for tokens in prompts[:2]]
        return hits.index(max(hits)) + 1

    assert survivor(idle_seconds=1.0) == 1
    assert survivor(idle_seconds=100.0) == 2


@pytest.mark.parametrize("usable_blocks", [1, 7, 100, 12345])
def test_shares_in_blocks_fit_whatever_the_size_of_the_pool(usable_blocks: int) -> None:
    percents = {"a": TenantPercent(33.3, 50), "b": TenantPercent(66.7, 100)}
    percents["c"] = TenantPercent(0, 0.001)
    shares = shares_in_blocks(percents, usable_blocks)
    assert sum(share.floor_blocks for share in shares.values()) <= usable_blocks
    quotas = {tenant: share.quota_blocks or 0 for tenant, share in shares.items()}
    assert quotas["a"] == -(-usable_blocks // 2)
    assert quotas["b"] == usable_blocks
    assert quotas["c"] >= 1


def test_weights_are_told_apart_by_their_contents(tmp_path: Path) -> None:
    sources = []
    for name in ("one", "two", "three"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"header" + name[:1].encode() * 100)
        sources.append(ModelSource(ModelKind.HF_FOLDER, folder, "same"))
    digests = [contents_digest(source) for source in sources]
    assert digests[1] == digests[2], "their names do not matter"
    assert digests[0] != digests[1]
    gguf = ModelSource(ModelKind.GGUF, tmp_path / "one" / "model.safetensors", "same")
    assert contents_digest(gguf) not in digests


def test_files_are_read_whole_only_for_blocks_that_leave_the_process(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    source = ModelSource(ModelKind.GGUF, file, "model")
    own = EngineSettings(host_cache_bytes=1 << 20)
    assert weights_identity(own, source, "float32")  # the file is not even there
    shared = EngineSettings(host_cache_bytes=1 << 20, disk_cache_folder=str(tmp_path))
    file.write_bytes(b"weights")
    identities = {
        weights_identity(shared, source, "float32"),
        weights_identity(shared, source, "bfloat16"),
    }
    file.write_bytes(b"changed")
    identities.add(weights_identity(shared, source, "float32"))
    assert len(identities) == 3
