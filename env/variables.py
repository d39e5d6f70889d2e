"""Which environment variables suit a run, given its threads, the libraries found, and what the user has set."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ipex_assist.env.libraries import Libraries

# The values of IPEX 2.8's launcher (intel_extension_for_pytorch/cpu/launch/launcher_base.py). `compact,1,0` puts
# consecutive threads on consecutive cores, one thread per core before any second one.
KMP_AFFINITY = "granularity=fine,compact,1,0"
KMP_BLOCKTIME = "1"
MALLOC_CONF = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
# Without libiomp5 the launcher of IPEX falls back on the GNU runtime with these.
GNU_OPENMP = {"OMP_SCHEDULE": "STATIC", "OMP_PROC_BIND": "CLOSE"}

# Any of these is the user's own binding of OpenMP threads; KMP_AFFINITY beside it would override it.
USER_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")

OPENMP_NAMES = ("libiomp5", "libomp", "libgomp")
ALLOCATOR_NAMES = ("libtcmalloc", "libjemalloc", "libmimalloc")


@dataclass(frozen=True)
class Variables:
    """`set` is to be put into the environment; `kept` is the user's own and stays.

    `wanted` gives for each kept variable what would have been set in its place. LD_PRELOAD is merged: it appears in
    `set` when something was added, and `preload` lists what was added.
    """

    set: dict[str, str]
    kept: dict[str, str]
    wanted: dict[str, str]
    preload: tuple[str, ...]

    def describe_kept(self) -> list[str]:
        """Return a line for each kept variable, naming the value given up where it differs."""
        return [
            f"{name}={value} is yours and kept"
            + ("" if self.wanted[name] == value else f" (otherwise {self.wanted[name]})")
            for name, value in self.kept.items()
        ]


def choose_variables(
    threads: int,
    libraries: Libraries,
    environ: Mapping[str, str],
    *,
    override_threads: bool = False,
    show_openmp_settings: bool = False,
    set_openmp: bool = True,
) -> Variables:
    """Choose the variables for a process of `threads` OpenMP threads.

    Args:
        threads: threads of the plan, one per physical core.
        libraries: what may be preloaded; only these paths are ever added to LD_PRELOAD.
        environ: the user's environment, which wins, except for:
        override_threads: the user asked for `threads` on the command line, so that OMP_NUM_THREADS follows it.
        show_openmp_settings: let libiomp5 print its settings at start (KMP_SETTINGS=1), a page on stderr.
        set_openmp: without it no OpenMP variable is set; its runtimes then take a thread for each CPU of the mask.
    """
    preload = libraries_to_preload(libraries, environ)
    loaded = _names_in_preload(environ) + [os.path.basename(path) for path in preload]
    wanted = _openmp_variables(threads, loaded, show_openmp_settings) if set_openmp else {}
    if _any_starts(loaded, ("libjemalloc",)):
        wanted["MALLOC_CONF"] = MALLOC_CONF
    kept = {name: environ[name] for name in wanted if environ.get(name)}
    if override_threads:
        kept.pop("OMP_NUM_THREADS", None)
    binding = {name: environ[name] for name in USER_BINDING if environ.get(name)}
    if binding and "KMP_AFFINITY" in wanted and "KMP_AFFINITY" not in kept:
        instead = f"KMP_AFFINITY={wanted.pop('KMP_AFFINITY')}"
        kept |= binding
        wanted |= dict.fromkeys(binding, instead)
    chosen = {name: value for name, value in wanted.items() if name not in kept}
    if preload:
        chosen["LD_PRELOAD"] = ":".join([*_split_preload(environ), *preload])
    return Variables(chosen, kept, {name: wanted[name] for name in kept}, preload)


def _openmp_variables(threads: int, loaded: list[str], show_settings: bool) -> dict[str, str]:
    """Return the variables of the OpenMP runtime that is preloaded; GNU's, which frameworks bring, where none is."""
    variables = {"OMP_NUM_THREADS": str(threads)}
    if _any_starts(loaded, ("libiomp5", "libomp")):
        variables["KMP_AFFINITY"] = KMP_AFFINITY
        variables["KMP_BLOCKTIME"] = KMP_BLOCKTIME
        variables["KMP_SETTINGS"] = "1" if show_settings else "0"
    else:
        variables.update(GNU_OPENMP)
    return variables


def libraries_to_preload(libraries: Libraries, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths to append to the user's LD_PRELOAD: the allocator, then OpenMP, as IPEX's launcher orders them.

    What the user preloads already is not loaded twice, whatever its version or folder, nor is a second allocator or
    OpenMP runtime put beside it.
    """
    present = _names_in_preload(environ)
    added = []
    if libraries.allocator and not _any_starts(present, ALLOCATOR_NAMES):
        added.append(libraries.allocator)
    if libraries.libiomp5 and not _any_starts(present, OPENMP_NAMES):
        added.append(libraries.libiomp5)
    return tuple(added)


def _split_preload(environ: Mapping[str, str]) -> list[str]:
    """The user's entries in order and once each; the dynamic linker takes blanks and colons as separators."""
    return list(dict.fromkeys(environ.get("LD_PRELOAD", "").replace(":", " ").split()))


def _names_in_preload(environ: Mapping[str, str]) -> list[str]:
    return [os.path.basename(entry) for entry in _split_preload(environ)]


def _any_starts(names: list[str], prefixes: tuple[str, ...]) -> bool:
    return any(name.startswith(prefixes) for name in names)
