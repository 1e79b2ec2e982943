"""bfloat16 against float32 transformers, teacher-forced: the most likely token must agree."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runner_driver import RunnerDriver
from smollm2_oracle import smollm2_in_transformers

from service.config import EngineSettings
from service.engine.build import build_runner
from service.models.source import resolve_model
from service.tokenizer import load_tokenizer

pytestmark = pytest.mark.slow

TEXT = (
    "The harbour was quiet before dawn. A few fishing boats rocked against the quay, and the "
    "keeper of the lighthouse climbed the stairs with a lamp in his hand. He had done so every "
    "morning for thirty years, through storms and calm weather, and he knew each step by its "
    "sound. When he reached the top he looked at the sea, which was grey and flat, and wrote "
    "the time in his book. Water boils at one hundred degrees Celsius at sea level, and it "
    "freezes at zero. The capital of France is Paris, and the capital of Italy is Rome. A "
    "computer stores numbers as bits; eight of them make a byte. Plants turn light, water and "
    "carbon dioxide into sugar and oxygen, and almost all life on Earth depends on this."
)


@pytest.mark.parametrize("chunk_tokens", [1, 32])
@pytest.mark.parametrize("packed_weights", ["on", "off"])
def test_top_1_agrees_with_float32(packed_weights: str, chunk_tokens: int) -> None:
    """Token by token (the product for one row) and in chunks (the one for many)."""
    source = resolve_model("smollm2-135m")
    ids = load_tokenizer(source).encode(TEXT)
    with torch.no_grad():
        want = smollm2_in_transformers()(torch.tensor([ids])).logits[0].argmax(-1).numpy()
    built = build_runner(
        EngineSettings(dtype="bfloat16", packed_weights=packed_weights, kv_blocks=32, threads=2),
        lambda _: None,
    )
    driver = RunnerDriver(built.runner, built.num_blocks, 16)
    drive = driver.sequence(ids)
    got = []
    while drive.computed < len(ids):
        chunk = min(chunk_tokens, len(ids) - drive.computed)
        got.append(driver.step([(drive, chunk)], all_rows=True).argmax(-1))
    agreement = np.mean(np.concatenate(got) == want)
    assert agreement >= 0.97, f"{agreement:.3f} of {len(ids)} positions"
