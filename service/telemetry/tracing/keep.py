"""Which traces are worth a collector's room. Pure."""

from __future__ import annotations

from service.telemetry.tracing.records import SpanTree


def is_kept(tree: SpanTree) -> bool:
    """All that were sampled, and all to which something happened: an error, a preemption, the
    death of an engine, a step without memory. Decided at the end, of the whole tree."""
    return tree.is_sampled or tree.is_troubled
