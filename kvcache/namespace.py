"""Keys of cache namespaces: only sequences of one namespace share blocks."""

from __future__ import annotations


def namespace_key(
    *, tenant: str = "", salt: str = "", adapter: str = "", fingerprint: str = ""
) -> bytes:
    """Joins the fields so that two different sets of fields never give one key.

    Every field is framed by its length: `tenant="ab"` and `tenant="a", salt="b"` differ, and
    an adapter cannot be named so that it poses as a salt. `fingerprint` identifies weights,
    RoPE settings and KV dtype, whatever makes the same tokens give another KV.
    """
    encoded = [field.encode() for field in (tenant, salt, adapter, fingerprint)]
    return b"".join(len(field).to_bytes(4, "little") + field for field in encoded)
