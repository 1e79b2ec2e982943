"""Which core to take."""

from __future__ import annotations

import logging
from typing import Literal

from kvcache.core.contract import CacheCore
from kvcache.core.eviction import EvictionRule, PolicyName
from kvcache.core.python_core import PythonCore
from kvcache.errors import InvalidArgumentError, NativeCoreMissingError

CoreChoice = Literal["auto", "native", "python"]
_logger = logging.getLogger(__name__)


def create_core(
    choice: CoreChoice,
    num_blocks: int,
    block_tokens: int,
    policy: PolicyName,
    *,
    record_events: bool = False,
) -> tuple[str, CacheCore]:
    """The name of a core, and the core. `auto` is the native one where it was built.

    Raises NativeCoreMissingError when `native` is demanded and cannot be loaded.
    """
    rule = EvictionRule.of(policy, num_blocks - 1)
    if choice not in ("auto", "native", "python"):
        raise InvalidArgumentError("core", choice, "auto, native or python")
    if choice != "python":
        try:
            from kvcache._native import NativeCore
        except ImportError as error:
            if choice == "native":
                raise NativeCoreMissingError(str(error)) from error
            _logger.warning("kvcache runs without its native core, many times slower: %s", error)
        else:
            return "native", NativeCore(num_blocks, block_tokens, *rule, record_events)
    return "python", PythonCore(num_blocks, block_tokens, *rule, record_events)
