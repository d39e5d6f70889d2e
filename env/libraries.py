"""Finds shared libraries to preload: Intel's OpenMP runtime, and a faster malloc."""

from __future__ import annotations

import os
import re
import site
import struct
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from ipex_assist.env.errors import UsageError

OpenMP = Literal["auto", "intel", "gnu", "none"]
Allocator = Literal["auto", "tcmalloc", "jemalloc", "system"]

# Without the -dev package, Debian and Red Hat install these under versioned names only.
# Names must match as a whole, because tcmalloc's debug and profiling variants are slower.
PATTERNS = {
    "libiomp5": re.compile(r"libiomp5\.so(\.\d+)*"),
    "tcmalloc": re.compile(r"libtcmalloc(_minimal)?\.so(\.\d+)*"),
    "jemalloc": re.compile(r"libjemalloc\.so(\.\d+)*"),
}
SYSTEM_DIRS = (
    "/usr/local/lib",
    "/usr/local/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/usr/lib",
)
ELF_64_BIT = 2


@dataclass(frozen=True)
class Libraries:
    """Paths of the libraries; None for one that was not found."""

    libiomp5: str | None = None
    tcmalloc: str | None = None
    jemalloc: str | None = None

    @property
    def allocator(self) -> str | None:
        """tcmalloc if it was found, else jemalloc: the order of IPEX's launcher."""
        return self.tcmalloc or self.jemalloc

    unusable: tuple[str, ...] = ()  # found in folders whose names LD_PRELOAD cannot hold

    def missing(self, openmp: OpenMP = "auto", allocator: Allocator = "auto") -> list[str]:
        """A line for each library that would make runs faster and was not found, with how to install it.

        Libraries that the user's choices rule out are not mentioned.
        """
        lines = []
        if openmp in ("auto", "intel") and not self.libiomp5:
            lines.append(f"libiomp5.so not found, the GNU OpenMP runtime is slower: {self._remedy('libiomp5')}")
        if allocator == "auto" and not self.allocator:
            lines.append("neither tcmalloc nor jemalloc found, malloc is slower: apt-get install libtcmalloc-minimal4")
        return lines

    def _remedy(self, name: str) -> str:
        found = next((path for path in self.unusable if os.path.basename(path).startswith(name)), None)
        if found is None:
            return "pip install intel-openmp"
        return f"{found} is there, but LD_PRELOAD takes no path with blanks or colons: make the environment elsewhere"

    def restricted(self, openmp: OpenMP = "auto", allocator: Allocator = "auto") -> Libraries:
        """The libraries that may be preloaded, given the user's choice of OpenMP runtime and allocator.

        Raises:
            UsageError: a library that was asked for by name was not found.
        """
        if openmp == "intel" and not self.libiomp5:
            raise UsageError(f"--openmp intel: libiomp5.so was not found: {self._remedy('libiomp5')}")
        if allocator in ("tcmalloc", "jemalloc") and not getattr(self, allocator):
            package = {"tcmalloc": "libtcmalloc-minimal4", "jemalloc": "libjemalloc2"}[allocator]
            raise UsageError(f"--allocator {allocator}: it was not found; type apt-get install {package}")
        return replace(
            self,
            libiomp5=self.libiomp5 if openmp in ("auto", "intel") else None,
            tcmalloc=self.tcmalloc if allocator in ("auto", "tcmalloc") else None,
            jemalloc=self.jemalloc if allocator in ("auto", "jemalloc") else None,
        )

    def as_dict(self) -> dict[str, str | None]:
        return {"libiomp5": self.libiomp5, "tcmalloc": self.tcmalloc, "jemalloc": self.jemalloc}


_UNUSABLE = re.compile(r"[\s:]")


def find_libraries(environ: Mapping[str, str] = os.environ, folders: Iterable[str | Path] | None = None) -> Libraries:
    """Search `folders`; by default the library folders of the running environment, then the system's."""
    search = list(folders) if folders is not None else [*environment_dirs(environ), *linker_dirs(), *SYSTEM_DIRS]
    unusable: list[str] = []
    found = {name: _find(pattern, search, unusable) for name, pattern in PATTERNS.items()}
    return Libraries(**found, unusable=tuple(unusable))


def environment_dirs(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Folders where pip and conda install shared libraries for this interpreter, the most specific first.

    The intel-openmp wheel installs into `<prefix>/lib`, with `pip install --user` below the user's base. An activated
    environment comes after the interpreter's own.
    """
    prefixes = [sys.prefix, *(environ[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environ.get(name))]
    if site.ENABLE_USER_SITE:
        prefixes.append(site.getuserbase())
    prefixes.append(sys.base_prefix)
    linker_path = [folder for folder in environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return list(dict.fromkeys([*(os.path.join(prefix, "lib") for prefix in prefixes), *linker_path]))


def linker_dirs(configuration: str | Path = "/etc/ld.so.conf.d") -> list[str]:
    """Folders in the dynamic linker's configuration, such as those of oneAPI or of this architecture."""
    folders = []
    for file in sorted(Path(configuration).glob("*.conf")):
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError:
            continue
        folders += [line.strip() for line in lines if line.strip().startswith("/")]
    return folders


def _find(pattern: re.Pattern[str], folders: Iterable[str | Path], unusable: list[str]) -> str | None:
    for folder in folders:
        try:
            names = [name for name in os.listdir(folder) if pattern.fullmatch(name)]
        except OSError:
            continue
        for name in sorted(sorted(names, reverse=True), key=_preference):
            path = os.path.join(folder, name)
            if is_preloadable(path):
                return path
            if _UNUSABLE.search(path):
                unusable.append(path)
    return None


def _preference(name: str) -> tuple[bool, bool, int]:
    """Sort key: the plain name first, full before minimal, `.so.4` (which programs link to) before `.so.4.5.10`."""
    return not name.endswith(".so"), "_minimal" in name, name.count(".")


def is_preloadable(path: str) -> bool:
    """Whether the dynamic linker can load `path` by LD_PRELOAD into a process like this one.

    LD_PRELOAD is split at blanks and colons, so paths must not contain them; and a `.so` may be a linker script, or
    built for another processor.
    """
    if _UNUSABLE.search(path):
        return False
    try:
        with open(path, "rb") as file:
            header = file.read(20)
        with open("/proc/self/exe", "rb") as file:
            own = file.read(20)
    except OSError:
        return False
    if len(header) < 20 or header[:4] != b"\x7fELF" or header[4] != ELF_64_BIT:
        return False
    (machine,) = struct.unpack_from("<H", header, 18)
    (own_machine,) = struct.unpack_from("<H", own, 18)
    return bool(machine == own_machine)
