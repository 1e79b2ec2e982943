"""Random numbers by counter: those of token n depend on (seed, n) alone.

Nothing is carried from token to token, so neither batch neighbours nor preemption nor an
engine restart can change what a sequence draws. The generator is Philox-4x64-10 (Salmon
et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011); numpy guarantees its stream.
"""

from __future__ import annotations

import numpy as np

_WORD = (1 << 64) - 1
_MANTISSA_BITS = 53


def uniforms(seed: int, token_index: int, count: int) -> list[float]:
    """The random numbers in [0, 1) of output token `token_index` under `seed`, 53 bits each."""
    # The lowest word of the counter belongs to the numbers of one token.
    generator = np.random.Philox(key=seed & _WORD, counter=token_index << 64)
    words = generator.random_raw(count) >> np.uint64(64 - _MANTISSA_BITS)
    numbers: list[float] = (words * 2.0**-_MANTISSA_BITS).tolist()
    return numbers
