"""Reading small files below a root folder, so that a recorded machine reads like the live one."""

from __future__ import annotations

import re
from pathlib import Path

from ipex_assist.env.cpulist import parse_cpulist, parse_cpumask

# Older kernels have only these; the newer list files say the same.
MASK_FILES = {"core_cpus", "core_siblings", "cpumap", "package_cpus", "shared_cpu_map", "thread_siblings"}


class Tree:
    """The files of one machine: `/` for this one, or a folder that holds a copy of its `sys` and `proc`."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)
        self.live = self.root.resolve() == Path("/")

    def text(self, path: str) -> str | None:
        """Return the file's text without surrounding blanks, or None where it is missing or unreadable."""
        try:
            # Recorded sysfs files sometimes end in NUL bytes.
            return (self.root / path).read_text(errors="replace").strip("\0 \t\r\n")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the file's integer, or None where there is none."""
        text = self.text(path)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def ids(self, *paths: str) -> tuple[int, ...] | None:
        """Return the set in the first readable of `paths`, be it a list file or one of `MASK_FILES`."""
        for path in paths:
            text = self.text(path)
            if text is None:
                continue
            try:
                return parse_cpumask(text) if path.rpartition("/")[2] in MASK_FILES else parse_cpulist(text)
            except ValueError:
                continue
        return None

    def numbered(self, folder: str, prefix: str) -> tuple[int, ...]:
        """Return n for every entry `<prefix>n` of `folder`, in numerical order."""
        try:
            names = [entry.name for entry in (self.root / folder).iterdir()]
        except OSError:
            return ()
        matches = (re.fullmatch(prefix + r"(\d+)", name) for name in names)
        return tuple(sorted(int(match[1]) for match in matches if match))

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()
