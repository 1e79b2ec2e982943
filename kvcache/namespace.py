"""Keys of cache namespaces: only sequences of one namespace share blocks."""

from __future__ import annotations

from collections.abc import Iterable


def framed(fields: Iterable[bytes]) -> bytes:
    """Joins fields so that no two different lists of them give the same bytes."""
    return b"".join(len(field).to_bytes(4, "little") + field for field in fields)


def namespace_key(
    *, tenant: str = "", salt: str = "", adapter: str = "", fingerprint: str = ""
) -> bytes:
    """Joins the fields so that two different sets of fields never give one key.

    Every field is framed by its length: `tenant="ab"` and `tenant="a", salt="b"` differ, and
    an adapter cannot be named so that it poses as a salt. `fingerprint` identifies weights,
    RoPE settings and KV dtype, whatever makes the same tokens give another KV.
    """
    return framed(field.encode() for field in (tenant, salt, adapter, fingerprint))
