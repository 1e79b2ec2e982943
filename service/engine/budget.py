"""The memory that an engine can count with at its start, and what it has for the pool."""

from __future__ import annotations

from kvcache import KVLayout
from kvcache.host_memory import available_memory_bytes, total_memory_bytes
from service.config import EngineSettings
from service.device.process_memory import resident_bytes
from service.engine.errors import StartError
from service.engine.messages import Predecessor
from service.engine.sizing import MemoryTerms, PoolPlan, largest_step, plan_pool
from service.models.activations import StepMemory
from service.models.config import ModelConfig
from service.models.weight_bytes import WeightCopies, weight_bytes


class MemoryBudget:
    """Known better as the start goes on: `copies` and `step_memory` are to be kept up to date."""

    def __init__(
        self,
        settings: EngineSettings,
        config: ModelConfig,
        layout: KVLayout,
        copies: WeightCopies,
        step_memory: StepMemory,
        predecessor: Predecessor | None,
    ) -> None:
        """Looks at once, see `look`."""
        self._predecessor = predecessor
        self._settings = settings
        self._config = config
        self._layout = layout
        self.copies = copies
        self.step_memory = step_memory
        self.look()

    def look(self) -> None:
        """Looks at the process and the host, to be called before anything is loaded.

        Raises StartError for a device that is larger than the host.
        """
        self.runtime_bytes = resident_bytes()
        self.capacity_bytes = self.runtime_bytes + available_memory_bytes()
        size_bytes = self._settings.device_memory_bytes
        if size_bytes is not None:
            host_bytes = total_memory_bytes()
            if size_bytes > host_bytes:
                raise StartError(
                    f"device_memory_bytes = {size_bytes}: the machine, or a control group of the "
                    f"process, has {host_bytes} bytes"
                )
            self.capacity_bytes = min(self.capacity_bytes, size_bytes)

    def weights_bytes(self, context_tokens: int) -> int:
        """Of all copies of the weights, for contexts of so many tokens."""
        return weight_bytes(self._config, self.copies, context_tokens)

    def step_bytes(self, context_tokens: int) -> int:
        """Of the largest step, for contexts of so many tokens."""
        return self.step_memory.step_bytes(largest_step(self._settings, context_tokens))

    def plan(self) -> PoolPlan:
        """Sizes of pool and context with what is known now; raises StartError."""
        terms = MemoryTerms(
            self.capacity_bytes, self.runtime_bytes, self.weights_bytes, self.step_bytes
        )
        return plan_pool(self._settings, self._config, self._layout, terms, self._predecessor)
