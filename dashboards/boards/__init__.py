"""One module per dashboard, and what they share."""

from __future__ import annotations

from dashboards.boards import kv_cache, latency, operator, overview, tenants, vram_to_oom
from dashboards.boards.board import Board


def all_boards() -> tuple[Board, ...]:
    """Every dashboard, built."""
    modules = (overview, kv_cache, vram_to_oom, latency, operator, tenants)
    return tuple(module.build() for module in modules)
