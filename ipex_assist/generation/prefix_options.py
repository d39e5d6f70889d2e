"""The options of a store of prefixes. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from ipex_assist.engine.prefix_store import check_folder
from ipex_assist.env.options import Options, Size, Text, documented, option

DEFAULT_SIZE = 4 << 30


@documented
@dataclass(frozen=True)
class PrefixOptions(Options):
    """Where the keys and values of prompts' prefixes are kept for later starts."""

    prefix_store: str | None = option(
        None, "keep prefixes that several prompts share in this folder, for later starts", Text(), "DIR"
    )
    prefix_store_size: int = option(
        DEFAULT_SIZE, "limit of that folder; the least recently used files are deleted (default: 4G)", Size(), "SIZE"
    )

    def check(self) -> None:
        """Raise UsageError where the folder cannot be used."""
        if self.prefix_store is not None:
            check_folder(self.prefix_store)
