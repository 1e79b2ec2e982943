"""Identities of the dashboards. Links, bookmarks and alerts hold them: one that is here stays."""

from __future__ import annotations

OVERVIEW = "plimsoll-overview"
KV_CACHE = "plimsoll-kv-cache"
VRAM_TO_OOM = "plimsoll-vram-to-oom"
LATENCY = "plimsoll-latency"
OPERATOR = "plimsoll-operator"
TENANTS = "plimsoll-tenants"

ALL = (OVERVIEW, KV_CACHE, VRAM_TO_OOM, LATENCY, OPERATOR, TENANTS)
