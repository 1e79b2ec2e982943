"""Hit ratios of the eviction policies on traces, in order, without time.

    python tests/bench/eviction_quality.py conversation_trace.jsonl.gz synthetic_trace.jsonl.gz

Every prompt goes whole through the real manager with blocks of 512 tokens, one prompt after
the other; see `kvcache.replay.insert_in_order`. `unlimited` is the most that any policy can
find. The last rows tell how many blocks of a warm session are left after one pass over ten
times the pool in prompts that come once.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import get_args

import numpy as np

from kvcache import AdmissionRequest, CacheManager, Fits
from kvcache.core.eviction import PolicyName
from kvcache.replay import TraceRequest, insert_in_order, read_trace

BLOCK_TOKENS = 512
CAPACITIES_BLOCKS = (1_000, 3_000, 10_000, 30_000)
SCAN_POOL_BLOCKS, SESSION_BLOCKS, SCAN_PROMPT_BLOCKS = 1_000, 200, 20
POLICIES: tuple[PolicyName, ...] = get_args(PolicyName)


def hit_percent(requests: list[TraceRequest], num_blocks: int, policy: PolicyName) -> float:
    """Hit ratio of a trace, in per cent."""
    manager = CacheManager(num_blocks + 1, BLOCK_TOKENS, policy=policy)
    return 100 * insert_in_order(requests, manager, BLOCK_TOKENS).hit_ratio


def blocks_after_scan(policy: PolicyName) -> int:
    """Blocks of a session of two turns that survive ten pools of other prompts."""
    manager = CacheManager(SCAN_POOL_BLOCKS + 1, 1, policy=policy)
    session = np.arange(SESSION_BLOCKS, dtype=np.int32)
    prompts = [session, np.append(session, np.int32(-1))]
    first = SESSION_BLOCKS
    while first < SESSION_BLOCKS + 10 * SCAN_POOL_BLOCKS:
        prompts.append(np.arange(first, first + SCAN_PROMPT_BLOCKS, dtype=np.int32))
        first += SCAN_PROMPT_BLOCKS
    for number, prompt in enumerate(prompts):
        answer = manager.admit(AdmissionRequest(number, prompt, b""))
        assert isinstance(answer, Fits)
        manager.begin(answer)
        manager.commit(number, prompt.size)
        manager.release(number)
    return manager.lookup(b"", np.append(session, np.int32(-2)))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", type=Path, nargs="*", help="Mooncake JSON lines, gzipped or not")
    print(f"{'hit ratio, %':<36}" + "".join(f"{policy:>14}" for policy in POLICIES) + "     gain")
    for path in parser.parse_args().traces:
        requests = read_trace(path)
        for num_blocks in CAPACITIES_BLOCKS:
            found = [hit_percent(requests, num_blocks, policy) for policy in POLICIES]
            gain = found[POLICIES.index("reuse-aware")] - found[POLICIES.index("lru")]
            print(
                f"{path.name.split('.')[0]:<24}{num_blocks:>12,}"
                + "".join(f"{percent:>14.2f}" for percent in found)
                + f"{gain:>+9.2f}",
                flush=True,
            )
        all_blocks = sum(len(request.hash_ids) for request in requests)
        most = hit_percent(requests, all_blocks, "lru")
        print(f"{path.name.split('.')[0]:<24}{'unlimited':>12}{most:>14.2f}{most:>14.2f}")
    left = [blocks_after_scan(policy) for policy in POLICIES]
    label = f"session blocks of {SESSION_BLOCKS} after a scan"
    print(f"{label:<36}" + "".join(f"{blocks:>14}" for blocks in left))


if __name__ == "__main__":
    main()
