"""The options of a server of many models. Never imports torch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ipex_assist.env.options import Kind, Options, Size, Text, Texts, documented, option
from ipex_assist.serve.model_sources import split_name

FOREVER = float("inf")
LONGEST_KEEP = 366 * 86400.0
_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class KeepTime(Kind):
    """Seconds, also written as 90s, 30m, 2h or 1d; -1 and forever are no limit, which is stored as infinity."""

    def take(self, value: Any) -> float:
        """A number of seconds, or a text as on the command line."""
        if isinstance(value, str):
            return self._parsed(value)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError("must be a number of seconds, or a text such as 30m or 2h")
        if value == FOREVER or value < 0:
            return FOREVER
        if value > LONGEST_KEEP:
            raise ValueError("must be a year at most, or forever")
        return float(value)

    def _parsed(self, text: str) -> float:
        if text.strip().lower() == "forever":
            return FOREVER
        found = re.fullmatch(r"(-?\d{1,12}(?:\.\d{1,6})?)\s*([smhd]?)", text.strip().lower(), re.ASCII)
        if found is None:
            raise ValueError("must be a time such as 90s, 30m or 2h; 0 is at once, -1 or forever never")
        return self.take(float(found[1]) * _UNITS[found[2]])


@documented
@dataclass(frozen=True)
class ManyModelsOptions(Options):
    """Which models a server has besides one, and how long they stay in memory."""

    models: tuple[str, ...] = option(
        (),
        "hub id, folder or .gguf file; repeat it as NAME=ID[,assistant=ID][,precision=P] for several, each loaded by "
        "the first request that names it (default: SmolLM2-135M)",
        Texts(),
        "[NAME=]ID",
        flags=("-m", "--model"),
    )
    models_dir: str | None = option(
        None, "serve every folder and .gguf file in this folder too, by its name", Text(), "DIR"
    )
    keep: float = option(
        1800.0,
        "of many models: unload one that has been idle this long, as 90s, 30m or 2h; 0: at once; -1 or forever: never "
        "(default: 30m)",
        KeepTime(),
        "TIME",
    )
    models_memory: int | None = option(
        None,
        "of many models: memory for all that are loaded; the least recently used are unloaded first (default: what is "
        "free at the start)",
        Size(),
        "SIZE",
    )

    @property
    def many(self) -> bool:
        """Whether models are loaded by requests; else the one model is loaded at once."""
        return self.models_dir is not None or len(self.models) > 1 or any(map(is_named, self.models))


def is_named(text: str) -> bool:
    """Whether a -m is of the form NAME=SOURCE; a path with = in it, which exists, is a path."""
    return split_name(text)[0] is not None
