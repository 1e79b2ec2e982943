"""The cache alone: prompts one after the other, as in published comparisons of policies."""

from __future__ import annotations

from collections.abc import Iterable

from kvcache.admission import AdmissionRequest, Fits
from kvcache.manager import CacheManager
from kvcache.replay.report import CacheFigures
from kvcache.replay.tokens import PromptMaker
from kvcache.replay.trace import TraceRequest


def insert_in_order(
    requests: Iterable[TraceRequest], manager: CacheManager, trace_block_tokens: int
) -> CacheFigures:
    """Admits, computes and releases every prompt whole before the next; outputs are left out.

    A prompt that ends inside a block of the trace is counted with the whole block, as the
    published hit ratios are: they divide hit hash ids by all hash ids. A prompt larger than
    the pool is counted as a miss and changes nothing.
    """
    prompts = PromptMaker(trace_block_tokens)
    missed_tokens = 0
    for index, request in enumerate(requests):
        whole_blocks = len(request.hash_ids) * trace_block_tokens
        tokens = prompts.prompt(index, request, max(request.prompt_tokens, whole_blocks))
        answer = manager.admit(AdmissionRequest(index, tokens, namespace=b""))
        if not isinstance(answer, Fits):
            missed_tokens += int(tokens.size)
            continue
        manager.begin(answer)
        manager.commit(index, int(tokens.size))
        manager.release(index)
    figures = CacheFigures.of(manager.stats())
    return figures.with_missed(missed_tokens)
