"""The replayer against published hit ratios, on the published traces."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from pathlib import Path

import pytest

from kvcache import CacheManager
from kvcache.replay import ReplaySettings, TraceRequest, insert_in_order, read_trace, replay

DATA = Path(__file__).parents[3] / "shared" / "data"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.exists(), reason="the shared data is not here"),
]
UNLIMITED = 190_000  # more blocks than either trace has
# Per cent of the hash ids that plain LRU finds, by blocks of 512 tokens.
PUBLISHED = {
    "conversation": {1000: 4.5, 3000: 6.5, 10_000: 21.2, 30_000: 32.6, UNLIMITED: 36.6},
    "synthetic": {1000: 8.4, 3000: 19.1, 10_000: 42.4, 30_000: 62.4, UNLIMITED: 64.0},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_lru_in_order_gives_the_published_hit_ratios(name: str) -> None:
    """What is left of the difference: the manager computes the last token of every prompt."""
    requests = read_trace(DATA / "mooncake" / f"{name}_trace.jsonl.gz")
    for num_blocks, published in PUBLISHED[name].items():
        expected = 100 * _lru_hit_ratio(requests, num_blocks)
        assert expected == pytest.approx(published, abs=0.06)
        manager = CacheManager(num_blocks + 1, 512, policy="lru")
        found = insert_in_order(requests, manager, 512)
        assert 100 * found.hit_ratio == pytest.approx(expected, abs=0.2), num_blocks


def _lru_hit_ratio(requests: list[TraceRequest], num_blocks: int) -> float:
    """LRU over hash ids, without a tree, tokens or sequences."""
    cached: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for request in requests:
        hits += sum(1 for _ in itertools.takewhile(cached.__contains__, request.hash_ids))
        for one in reversed(request.hash_ids):
            cached[one] = None
            cached.move_to_end(one)
        while len(cached) > num_blocks:
            cached.popitem(last=False)
    return hits / sum(len(request.hash_ids) for request in requests)


def test_waste_on_conversation_lengths_is_under_2_percent_with_blocks_of_16() -> None:
    requests = read_trace(DATA / "azure2023" / "AzureLLMInferenceTrace_conv.csv.gz")[:2000]
    report = replay(requests, ReplaySettings(num_blocks=20_000, block_tokens=16))
    assert report.requests.finished == len(requests)
    assert 0.0 < report.waste < 0.02
    coarse = replay(requests[:500], ReplaySettings(num_blocks=1250, block_tokens=256))
    assert coarse.waste > 0.05  # the figure tells blocks that are too large
