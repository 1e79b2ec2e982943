"""Random numbers by counter: the number of token n depends on (seed, n) alone.

Nothing is carried from token to token, so neither batch neighbours nor preemption nor an
engine restart can change what a sequence draws. The generator is Philox-4x64-10 (Salmon
et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011); numpy guarantees its stream.
"""

from __future__ import annotations

import numpy as np

_WORD = (1 << 64) - 1
_MANTISSA_BITS = 53


def uniform(seed: int, token_index: int) -> float:
    """The random number in [0, 1) of output token `token_index` under `seed`, 53 bits."""
    generator = np.random.Philox(key=seed & _WORD, counter=token_index)
    word = int(generator.random_raw())
    return float(word >> (64 - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS
