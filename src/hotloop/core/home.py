"""The folder where hotloop keeps models, caches and the trace."""

import os
import sys
from pathlib import Path

from hotloop.core.config import TraceConfig


def home() -> Path:
    """$HOTLOOP_HOME, or a folder in the user's cache folder."""
    if given := os.environ.get("HOTLOOP_HOME"):
        return Path(given).expanduser().absolute()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hotloop"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hotloop"


def store_path(config: TraceConfig) -> Path | None:
    """Where runs are recorded; None if they are not."""
    if config.trace == "off":
        return None
    return home() / "trace.db" if config.trace == "auto" else Path(config.trace).expanduser()
