"""`python -m service.cli` is `plimsoll`."""

import sys

from service.cli import main

sys.exit(main())
