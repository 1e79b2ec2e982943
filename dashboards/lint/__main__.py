"""Lint dashboards and alerts: python -m dashboards.lint. Ends with 1 where there are findings."""

from __future__ import annotations

import sys
from pathlib import Path

from dashboards.lint.check import check_folder


def main() -> int:
    """Prints each finding on a line."""
    findings = check_folder(Path(__file__).parents[1])
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
