"""Reads small files below a root folder, so that a recorded machine can be read like this one."""

from __future__ import annotations

import re
from pathlib import Path

from ipex_assist.env.cpulist import parse_cpulist, parse_cpumask

# Files that hold masks; older kernels have only these, newer ones also lists.
MASK_FILES = {"core_cpus", "core_siblings", "cpumap", "package_cpus", "shared_cpu_map", "thread_siblings"}


class Tree:
    """The files of one machine: `/` for this one, or a folder that holds a copy of its `sys` and `proc`."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)
        self.live = self.root.resolve() == Path("/")

    def text(self, path: str) -> str | None:
        """The file's text without surrounding blanks; None where it is missing or unreadable."""
        try:
            # Recorded sysfs files sometimes end in NUL bytes.
            return (self.root / path).read_text(errors="replace").strip("\0 \t\r\n")
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """The integer in the file; None where there is none."""
        text = self.text(path)
        try:
            return int(text) if text else None
        except ValueError:
            return None

    def ids(self, *paths: str) -> tuple[int, ...] | None:
        """The set in the first readable file of `paths`, a list or one of MASK_FILES; None if none is readable."""
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
        """The number n of every entry `<prefix>n` in `folder`, in ascending order."""
        try:
            names = [entry.name for entry in (self.root / folder).iterdir()]
        except OSError:
            return ()
        matches = (re.fullmatch(prefix + r"(\d+)", name) for name in names)
        return tuple(sorted(int(match[1]) for match in matches if match))

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()
