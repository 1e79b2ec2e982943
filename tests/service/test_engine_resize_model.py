"""Live resize under the torch runner: greedy tokens are those of an undisturbed run."""

from __future__ import annotations

import numpy as np
import pytest
from engine_fakes import spec_of
from tiny_model import VOCAB_SIZE, write_tiny_llama

from kvcache import CacheManager
from kvcache.memory import ArenaMemory
from service.config import EngineSettings
from service.engine.build import BuiltRunner, build_runner
from service.engine.core import EngineCore
from service.engine.figures import Incident
from service.engine.messages import FinishReason, Resize, SequenceSpec, ShrinkPolicy

pytestmark = pytest.mark.slow

POOL_BLOCKS = 640


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> BuiltRunner:
    folder = tmp_path_factory.mktemp("tiny")
    write_tiny_llama(folder)
    settings = EngineSettings(
        model=str(folder), dtype="float32", kv_blocks=POOL_BLOCKS, threads=1, block_tokens=4
    )
    return build_runner(settings, lambda _: None)


def load_of_64() -> list[SequenceSpec]:
    rng = np.random.default_rng(3)
    prefix = rng.integers(3, VOCAB_SIZE, 12).tolist()
    return [
        spec_of(
            i,
            prompt=[*(prefix if i % 2 else []), *rng.integers(3, VOCAB_SIZE, 6 + i % 9).tolist()],
            max_tokens=20 + i % 11,
        )
        for i in range(64)
    ]


class Run:
    """One core with an empty cache over the shared weights; the pool begins as NaN."""

    def __init__(self, built: BuiltRunner) -> None:
        arena = built.arena
        if arena.num_blocks < POOL_BLOCKS + 1:
            arena.grow(POOL_BLOCKS + 1)
        np.frombuffer(arena.arena.buffer, np.float32)[:] = np.nan
        manager = CacheManager(POOL_BLOCKS + 1, 4, memory=ArenaMemory(arena.arena))
        settings = EngineSettings(block_tokens=4, load_line=1.0, max_step_tokens=1024)
        self.core = EngineCore(
            built.runner,
            manager,
            arena,
            settings,
            built.max_context_tokens,
            device=built.device,
            tell=_no_incident,
        )
        self.outputs: dict[int, list[int]] = {}
        self.reasons: set[FinishReason] = set()
        self.core.submit(load_of_64())

    def step(self) -> None:
        report = self.core.step()
        for output in report.outputs:
            self.outputs.setdefault(output.sequence_id, []).extend(output.token_ids)
        self.reasons.update(finished.reason for finished in report.finished)
        assert not report.failed, "a read of what was not written is not finite"

    def resize(self, blocks: int, policy: ShrinkPolicy) -> int:
        """Steps until it has ended; answers the blocks in force."""
        self.core.resize(Resize(1, blocks, policy, limit_seconds=300.0))
        while not (ended := self.core.take_resized()):
            self.step()
        return ended[0].num_blocks

    def finish(self) -> None:
        while self.core.has_work:
            self.step()
        assert self.core.stats().blocks_held == 0


@pytest.mark.parametrize("policy", list(ShrinkPolicy))
def test_half_the_pool_goes_and_comes_back_while_64_requests_run(
    built: BuiltRunner, policy: ShrinkPolicy
) -> None:
    undisturbed = Run(built)
    undisturbed.finish()
    assert len({tuple(output) for output in undisturbed.outputs.values()}) > 60

    disturbed = Run(built)
    for _ in range(17):
        disturbed.step()
    stats = disturbed.core.stats()
    assert stats.running == 64
    assert stats.blocks_held > POOL_BLOCKS // 2
    assert disturbed.resize(POOL_BLOCKS // 2, policy) == POOL_BLOCKS // 2
    assert built.arena.num_blocks == POOL_BLOCKS // 2 + 1
    for _ in range(4):
        disturbed.step()
    assert disturbed.resize(POOL_BLOCKS, policy) == POOL_BLOCKS
    disturbed.finish()
    assert disturbed.reasons == {FinishReason.MAX_TOKENS}
    assert disturbed.outputs == undisturbed.outputs


def _no_incident(incident: Incident) -> None:
    raise AssertionError(f"the device had memory enough, and yet: {incident}")
