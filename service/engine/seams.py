"""What an engine computes and remembers with, and where faults can be put in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvcache.tiers.tier import Tier
from service.device.memory import DeviceMemory
from service.engine.messages import Inject
from service.engine.resize import ElasticMemory
from service.engine.runner import Runner


@dataclass(frozen=True, slots=True)
class Seams:
    """The parts of an engine that its core knows by their protocols alone."""

    runner: Runner
    device: DeviceMemory
    arena: ElasticMemory
    wrap_tier: Callable[[Tier], Tier]  # a tier below the host, as it is to be used
    inject: Callable[[Inject], None]  # takes orders of faults


def plain_seams(runner: Runner, device: DeviceMemory, arena: ElasticMemory) -> Seams:
    """An engine in which nothing goes wrong on purpose; an order of faults is an error."""
    return Seams(runner, device, arena, wrap_tier=lambda tier: tier, inject=_refuse)


def _refuse(order: Inject) -> None:
    raise ValueError(f"{len(order.faults)} faults ordered, but allow_faults is off")
