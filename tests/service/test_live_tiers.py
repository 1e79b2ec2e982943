"""A real server with tiers below its pool, which bring back what left it, also after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from live_server import serve

from service.cli import main
from service.client import Generation, GenerationOptions, PlimsollClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

POOL_BLOCKS = 70
OPTIONS = GenerationOptions(max_tokens=16, temperature=0.0)
STORY = "The captain looked at the line on the hull and ordered the crew to unload a crate. " * 24
OTHERS = [f"Number {i} is followed by number {i + 1}, as everybody knows. " * 40 for i in range(3)]


def ask(address: str, *prompts: str) -> list[Generation]:
    async def generate() -> list[Generation]:
        async with PlimsollClient(address) as client:
            return [await client.generate(prompt, OPTIONS) for prompt in prompts]

    return asyncio.run(generate())


def test_a_prefix_comes_back_from_the_host_and_after_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is not computed again, and what is said behind it stays the same."""
    flags = ["--kv-blocks", str(POOL_BLOCKS), "--host-cache-bytes", "64MiB"]
    flags += ["--disk-cache-folder", str(tmp_path)]
    with serve(*flags) as server:
        first, *_, again = ask(server.address, STORY, *OTHERS, STORY)
    with serve(*flags) as server:
        [after] = ask(server.address, STORY)
        assert main(["stats", "--admin-server", server.admin_address]) == 0
    assert first.usage.cached_prompt_tokens == 0
    whole_blocks = (first.usage.prompt_tokens - 1) // 16
    assert again.usage.cached_prompt_tokens == 16 * whole_blocks
    assert after.usage.cached_prompt_tokens == 16 * whole_blocks
    assert first.text
    assert again.text == after.text == first.text
    out = capsys.readouterr().out
    assert f" {whole_blocks} blocks loaded, 0 spilled, 0 lost, 0 failures" in out
