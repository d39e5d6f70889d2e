"""The cache folder for files that later processes can use again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(kind: str) -> Path:
    """$XDG_CACHE_HOME/ipex-assist/KIND, by default under ~/.cache. RuntimeError where no home is known."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ipex-assist" / kind
