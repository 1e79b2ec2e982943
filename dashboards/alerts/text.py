"""How files are written, so that the same alerts give the same bytes."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

COMPONENT = "plimsoll"


def document(content: Mapping[str, object], comment: str) -> str:
    """A YAML file that begins with `comment`."""
    lines = [
        "Written by `python -m dashboards.build`; changes made here are lost.",
        *comment.splitlines(),
    ]
    body = yaml.safe_dump(dict(content), sort_keys=False, width=100, allow_unicode=True)
    return "".join(f"# {line}\n" for line in lines) + body


def seconds(duration_seconds: int) -> str:
    """A duration as Prometheus and Grafana read it."""
    return f"{duration_seconds}s"
