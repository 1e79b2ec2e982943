"""`python -m service.engine --fd N`: the engine process.

Started by the front, which holds the other end of the socket N; see `SETTINGS_VARIABLE`.
"""

from __future__ import annotations

import sys

from service.engine.build import build_runner
from service.engine.entry import main

if __name__ == "__main__":
    sys.exit(main(build_runner))
