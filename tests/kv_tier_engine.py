"""A device of a few blocks with tiers below it, and a model whose K and V are known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from kv_tier_blocks import BLOCK_BYTES, BLOCK_TOKENS, FINGERPRINT, LAYOUT, contents
from kv_tier_fakes import Clock, until
from numpy.typing import NDArray

from kvcache import AdmissionRequest, Arena, CacheManager, Fits, TenantShare
from kvcache.memory import ArenaMemory
from kvcache.tiers import (
    HostTier,
    LoadLimits,
    Offload,
    Tier,
    Transfer,
    TransferState,
    chain_keys,
)

Tokens = NDArray[np.int32]
DEVICE_BLOCKS = 8
LEASE_SECONDS = 5.0
LIMITS = LoadLimits(min_blocks=1, lease_seconds=LEASE_SECONDS, probe_seconds=1.0)


class Engine:
    """Runs prompts; K and V follow from the tokens, and the version of their namespace."""

    def __init__(
        self,
        clock: Clock,
        *,
        host_blocks: int = 64,
        disk: Tier | None = None,
        remote: Tier | None = None,
        limits: LoadLimits = LIMITS,
        num_blocks: int = DEVICE_BLOCKS + 1,
        tenants: Mapping[str, TenantShare] = MappingProxyType({}),
    ) -> None:
        self.clock = clock
        self.arena = Arena(LAYOUT, num_blocks)
        self.memory = ArenaMemory(self.arena)
        self.manager = CacheManager(
            num_blocks, BLOCK_TOKENS, memory=self.memory, clock=clock, tenants=tenants
        )
        self.host = HostTier(BLOCK_BYTES, host_blocks * BLOCK_BYTES)
        self.offload = Offload(
            self.manager,
            self.memory,
            FINGERPRINT,
            self.host,
            disk=disk,
            remote=remote,
            limits=limits,
            queue_bytes=1000 * BLOCK_BYTES,
            clock=clock,
        )
        self.versions: Counter[bytes] = Counter()
        self._next_id = 0

    def start(self, tokens: Tokens, namespace: bytes = b"", publish: bool = True) -> int:
        """Admits, checks what is cached, computes the rest; answers the sequence."""
        self._next_id += 1
        answer = self.manager.admit(
            AdmissionRequest(self._next_id, tokens, namespace, publish=publish)
        )
        assert isinstance(answer, Fits), answer
        cached = self.manager.begin(answer)
        keys = chain_keys(FINGERPRINT, namespace, tokens, BLOCK_TOKENS)
        version = self.versions[namespace]
        table = self.manager.block_table(self._next_id).tolist()
        for place, (block, key) in enumerate(zip(table, keys, strict=False)):
            if place < cached // BLOCK_TOKENS:
                assert bytes(self.memory.read(block)) == contents(key, version), (
                    "a hit has wrong bytes"
                )
            else:
                self.memory.write(block, contents(key, version))
        self.manager.commit(self._next_id, tokens.size)
        return self._next_id

    def run(self, tokens: Tokens, namespace: bytes = b"") -> None:
        self.manager.release(self.start(tokens, namespace))

    def push_out(self) -> None:
        """Fills the device with other blocks, so that all that was cached leaves it."""
        self._next_id += 1
        other = np.arange(DEVICE_BLOCKS * BLOCK_TOKENS, dtype=np.int32) + 10_000 * self._next_id
        self.run(other, b"other")

    def cached(self, tokens: Tokens, namespace: bytes = b"") -> int:
        """Blocks on the device; their bytes are right."""
        hits = self.manager.lookup(namespace, tokens) // BLOCK_TOKENS
        if hits:
            self.run(tokens, namespace)
        return hits

    def finish(self, transfer: Transfer | None) -> TransferState:
        assert transfer is not None
        until(lambda: self.offload.poll() is not None and transfer.is_over)
        return transfer.state


def prompt(blocks: int, first_token: int = 0) -> Tokens:
    """A prompt of which so many whole blocks may be hit."""
    return np.arange(first_token, first_token + blocks * BLOCK_TOKENS + 1, dtype=np.int32)


NewEngine = Callable[..., Engine]  # of the fixture: takes the options of Engine


def fill_store(engine: Engine, tokens: Tokens) -> None:
    """Has the blocks of a prompt in the store below and nowhere else."""
    engine.run(tokens)
    for _ in range(2):
        engine.push_out()
    for worker in engine.offload._below:
        assert worker.flush(60)
    keys = chain_keys(FINGERPRINT, b"", tokens, BLOCK_TOKENS)
    assert engine.host.leading_hits(keys) == 0
    assert engine.cached(tokens) == 0
