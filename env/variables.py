"""Chooses environment variables for a run, by its threads, the libraries found, and the user's environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ipex_assist.env.libraries import Libraries

# The values of IPEX 2.8's launcher (intel_extension_for_pytorch/cpu/launch/launcher_base.py). `compact,1,0` puts
# consecutive threads on consecutive cores, one on each core before any core gets a second.
KMP_AFFINITY = "granularity=fine,compact,1,0"
KMP_BLOCKTIME = "1"
MALLOC_CONF = "oversize_threshold:1,background_thread:true,metadata_thp:auto"
# Without libiomp5, IPEX's launcher falls back on the GNU runtime with these variables.
GNU_OPENMP = {"OMP_SCHEDULE": "STATIC", "OMP_PROC_BIND": "CLOSE"}

# If the user has set one of these to bind OpenMP threads, we must not set KMP_AFFINITY, which would override it.
USER_BINDING = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY")

OPENMP_NAMES = ("libiomp5", "libomp", "libgomp")
ALLOCATOR_NAMES = ("libtcmalloc", "libjemalloc", "libmimalloc")


@dataclass(frozen=True)
class Variables:
    """set: variables to put into the environment; kept: the user's own, which stay.

    wanted: for each kept variable, the value that would have been set. LD_PRELOAD is merged: it is in `set` when
    something was added, and `preload` lists the added paths.
    """

    set: dict[str, str]
    kept: dict[str, str]
    wanted: dict[str, str]
    preload: tuple[str, ...]

    def describe_kept(self) -> list[str]:
        """A line for each kept variable, with the value that would have been set where it differs."""
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
        threads: threads of the placement, one on each physical core.
        libraries: what may be preloaded; only these paths are ever added to LD_PRELOAD.
        environ: the user's environment. Its variables are kept, with one exception:
        override_threads: the user gave `threads` on the command line, so OMP_NUM_THREADS is set to it.
        show_openmp_settings: let libiomp5 print its settings at start (KMP_SETTINGS=1), a page on stderr.
        set_openmp: False: set no OpenMP variable; runtimes then start a thread for each CPU of the affinity mask.
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
    """The variables of the preloaded OpenMP runtime; of GNU's, which frameworks bring, where none is preloaded."""
    variables = {"OMP_NUM_THREADS": str(threads)}
    if _any_starts(loaded, ("libiomp5", "libomp")):
        variables["KMP_AFFINITY"] = KMP_AFFINITY
        variables["KMP_BLOCKTIME"] = KMP_BLOCKTIME
        variables["KMP_SETTINGS"] = "1" if show_settings else "0"
    else:
        variables.update(GNU_OPENMP)
    return variables


def libraries_to_preload(libraries: Libraries, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The paths to append to the user's LD_PRELOAD: the allocator, then OpenMP, in the order of IPEX's launcher.

    Where the user already preloads an allocator or an OpenMP runtime, of any version, no second one is added.
    """
    present = _names_in_preload(environ)
    added = []
    if libraries.allocator and not _any_starts(present, ALLOCATOR_NAMES):
        added.append(libraries.allocator)
    if libraries.libiomp5 and not _any_starts(present, OPENMP_NAMES):
        added.append(libraries.libiomp5)
    return tuple(added)


def _split_preload(environ: Mapping[str, str]) -> list[str]:
    """The entries of LD_PRELOAD in order without duplicates. The dynamic linker splits it at blanks and colons."""
    return list(dict.fromkeys(environ.get("LD_PRELOAD", "").replace(":", " ").split()))


def _names_in_preload(environ: Mapping[str, str]) -> list[str]:
    return [os.path.basename(entry) for entry in _split_preload(environ)]


def _any_starts(names: list[str], prefixes: tuple[str, ...]) -> bool:
    return any(name.startswith(prefixes) for name in names)
