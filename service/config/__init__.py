"""Every setting of Plimsoll: its unit, default, bounds and one sentence of meaning.

`engine` and `serve` hold the settings as Structs; `sources` fills them from flags,
environment, a TOML file and the defaults, and writes the text of `plimsoll serve --help`.
"""

from service.config.engine import EngineSettings
from service.config.serve import ServeSettings

__all__ = ["EngineSettings", "ServeSettings"]
