"""Compiles the native core with g++. Run by setup.py before the package can be imported: standard library only.

With $IPEX_ASSIST_OBJECTS set to a folder, compiled objects are kept there by content and shared by the builds of all
checkouts and environments. Without it nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
OLDEST_GCC = 11  # the first with AMX intrinsics
CACHE_VARIABLE = "IPEX_ASSIST_OBJECTS"
CACHE_BYTES = 1 << 30
CHECKSUM = hashlib.sha256().digest_size  # bytes at the end of a kept object
KERNELS = HERE / "kernels" / "kernels.cpp"
DISPATCH = HERE / "kernels" / "dispatch.cpp"
API = HERE / "abi" / "api.cpp"
COMMON = tuple(path for path in sorted(HERE.glob("**/*.cpp")) if path != KERNELS)
EMULATED = "-DIPEX_ASSIST_EMULATE_AMX"
# kernels.cpp is compiled once for each of these; kernels/dispatch.cpp chooses among them when the library is loaded.
INSTRUCTION_SETS = {
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx2_vnni": ("-mavx2", "-mfma", "-mf16c", "-mavxvnni"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c", "-mavx2"),
    "avx512_vnni": ("-march=cascadelake",),
    "avx512_bf16": ("-march=cooperlake",),
    "amx": ("-march=sapphirerapids",),
}
STRUCTURES = ("packing/spec.h", "operations/batch.h")  # that Python fills, too
# A product and a sum are rounded once only where the source says so: what compilers choose differs by level.
FLAGS = ("-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off", "-g1")
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Werror=switch",  # over number formats: a new one without its case does not compile
    "-Wno-ignored-attributes",  # vector types as template arguments
    "-Wno-maybe-uninitialized",  # gcc's own intrinsics headers
    "-Wno-uninitialized",
)


def interface_number() -> int:
    """What the sources here declare for Python, functions and structures, as a number; comments do not count.

    The library has that of the sources it was built from.
    """
    apis = (path.read_text(encoding="utf-8") for path in sorted(HERE.glob("abi/*.cpp")))
    found = [each for text in apis for each in re.findall(r"^IPEX_ASSIST_API [^)]*\)", text, re.MULTILINE)]
    found += [path.read_text(encoding="utf-8") for path in map(HERE.joinpath, STRUCTURES) if path.exists()]
    return zlib.crc32(re.sub(r"//.*|\s", "", "\n".join(found)).encode()) >> 1


class BuildError(Exception):
    """The core cannot be built here; the message says why, for people."""


def compiler() -> str:
    """The path of a g++ that is new enough ($CXX if set). Raises BuildError."""
    if platform.machine() not in ("x86_64", "AMD64"):
        raise BuildError(f"the native core needs an x86-64 processor, this is {platform.machine()}")
    name = os.environ.get("CXX", "g++")
    path = shutil.which(name)
    if path is None:
        raise BuildError(f"no compiler: {name} was not found (Debian, Ubuntu: apt install g++)")
    answer = subprocess.run([path, "-dumpfullversion", "-dumpversion"], capture_output=True, text=True)
    version = re.match(r"\d+", answer.stdout.strip())
    if answer.returncode or version is None:
        raise BuildError(f"{path} does not tell its version; is it g++?")
    if int(version[0]) < OLDEST_GCC:
        raise BuildError(f"{path} is version {answer.stdout.strip()}, {OLDEST_GCC} or newer is needed")
    return path


def build(
    output: Path,
    *,
    flags: tuple[str, ...] = ("-O3",),
    program: Sequence[Path] = (),
    program_flags: tuple[str, ...] = (),
    link_flags: tuple[str, ...] = (),
    emulate_amx: bool = False,
) -> None:
    """Compile the library to `output`, or, with `program`, an executable of these sources and the core's.

    flags: for every file and the linker, such as -fsanitize=address. program_flags: for the program's sources only.
    link_flags: for the linker only. emulate_amx: with amx_tiles.h's plain arrays in place of AMX, so that the code on
    them runs on processors without it (dispatch.cpp then chooses kernels_amx()). Nothing is done where `output` was
    built from the same sources with the same flags. Raises BuildError.
    """
    gcc = os.path.abspath(compiler())
    output = output.resolve()
    jobs = _jobs(flags, [path.resolve() for path in program], program_flags, emulate_amx)
    key = _key(gcc, jobs, (*flags, *link_flags))
    stamp = output.with_suffix(".key")
    if output.exists() and stamp.exists() and stamp.read_text() == key:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{output.name}.", dir=output.parent))
    try:
        cache = ObjectCache.of_environment(gcc)
        objects = [work / f"{i}_{job.source.name}.o" for i, job in enumerate(jobs)]
        with ThreadPoolExecutor(compilers_at_once()) as pool:
            list(pool.map(lambda job, made: _compile(gcc, job, made, cache), jobs, objects))
        if cache is not None:
            cache.trim()
        kind = () if program else ("-shared",)
        _run([gcc, *kind, *FLAGS, *flags, *link_flags, *map(str, objects), "-o", str(work / "linked")])
        os.replace(work / "linked", output)
        stamp.write_text(key)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compilers_at_once() -> int:
    """As many as this process has CPUs, by its affinity and quota, and 3 GB of memory for each, which kernels take."""
    cpus, memory = float(len(os.sched_getaffinity(0))), float("inf")
    with contextlib.suppress(OSError, ValueError, IndexError):
        available = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
        memory = int(available[1]) * 1024.0 if available else memory
    for group in _cgroups():
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            cpus = min(cpus, int(quota) / int(period))
        with contextlib.suppress(OSError, ValueError):
            used = int((group / "memory.current").read_text())
            memory = min(memory, int((group / "memory.max").read_text()) - used)
    return max(1, int(min(cpus, memory / 3e9)))


def _cgroups() -> list[Path]:
    """The folders of this process's cgroup (version 2) and of those it lies in."""
    root = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        own = root / next(line[3:].lstrip("/") for line in lines if line.startswith("0::"))
        return [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return []


class Compilation(NamedTuple):
    """One object: its source, and the flags beside those that all have."""

    source: Path
    flags: tuple[str, ...]


def _jobs(
    flags: tuple[str, ...], program: Sequence[Path], program_flags: tuple[str, ...], emulate_amx: bool
) -> list[Compilation]:
    """Every object of a build; those that take longest come first, so that all processors are busy until the end."""
    jobs = []
    for name, isa in INSTRUCTION_SETS.items():
        if emulate_amx and name == "amx":
            isa = (*INSTRUCTION_SETS["avx512_bf16"], EMULATED)
        defines = (f"-DIPEX_ASSIST_KERNELS=kernels_{name}", f'-DIPEX_ASSIST_ISA_NAME="{name}"')
        jobs.append(Compilation(KERNELS, (*flags, *isa, *defines)))
    own = {DISPATCH: (EMULATED,)} if emulate_amx else {}
    own |= {API: (f"-DIPEX_ASSIST_INTERFACE={interface_number()}",)} if API in COMMON else {}
    jobs += [Compilation(path, (*flags, *own.get(path, ()))) for path in COMMON]
    return jobs + [Compilation(path, (*flags, *program_flags)) for path in program]


def _compile(gcc: str, job: Compilation, output: Path, cache: ObjectCache | None) -> None:
    name = cache.name(job) if cache else ""
    if cache and cache.fetch(name, output):
        return
    # Paths inside an object are those within the source tree, so that two checkouts make the same one.
    mapped = [f"-ffile-prefix-map={folder}={folder.name}" for folder in (HERE, job.source.parent)]
    _run([gcc, *FLAGS, *WARNINGS, f"-I{HERE}", *mapped, *job.flags, "-c", str(job.source), "-o", str(output)], HERE)
    if cache and cache.name(job) == name:  # nobody edited the source meanwhile
        cache.keep(name, output)


class ObjectCache:
    """Compiled objects in a folder, named by a hash of everything their content depends on.

    It never fails a build: without room, without rights or with a broken file, what is looked for is compiled.
    """

    def __init__(self, folder: Path, gcc: str, size: int = CACHE_BYTES) -> None:
        self._folder, self._size = folder, size
        version = subprocess.run([gcc, "--version"], capture_output=True, text=True).stdout
        libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
        paths = [os.environ.get(name) for name in ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")]
        self._common = repr((version, libc, paths, FLAGS, WARNINGS))

    @classmethod
    def of_environment(cls, gcc: str) -> ObjectCache | None:
        """The cache that the environment names, if it names one."""
        folder = os.environ.get(CACHE_VARIABLE)
        return cls(Path(folder).expanduser(), gcc) if folder else None

    def name(self, job: Compilation) -> str:
        """The file name that the object of `job` has here."""
        digest = hashlib.sha256(repr((self._common, job.flags, job.source.name)).encode())
        for path in _closure(job.source):
            content = path.read_bytes()
            digest.update(f"{path.name} {len(content)} ".encode() + content)
        return f"{digest.hexdigest()}.o"

    def fetch(self, name: str, output: Path) -> bool:
        """Write the object of that name to `output`, if it is here and whole; returns whether it did."""
        try:
            data = (self._folder / name).read_bytes()
            if hashlib.sha256(data[:-CHECKSUM]).digest() != data[-CHECKSUM:]:
                return False
            output.write_bytes(data[:-CHECKSUM])
            os.utime(self._folder / name)  # trim() goes by the time of the last use
        except OSError:
            return False
        return True

    def keep(self, name: str, made: Path) -> None:
        """Add an object: whole or not at all, also where two builds add the same one."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            data = made.read_bytes()
            handle, temporary = tempfile.mkstemp(prefix=".new-", dir=self._folder)
            try:
                with open(handle, "wb") as file:
                    file.write(data + hashlib.sha256(data).digest())
                os.replace(temporary, self._folder / name)
            except OSError:
                os.unlink(temporary)
        except OSError:
            return

    def trim(self) -> None:
        """Remove the objects that were unused the longest, until the rest is no larger than the cache may be."""
        try:
            found = [(entry.stat(), entry.path) for entry in os.scandir(self._folder)]
        except OSError:
            return
        total = sum(status.st_size for status, _ in found)
        for status, path in sorted(found, key=lambda each: each[0].st_mtime):
            if total <= self._size:
                return
            try:
                os.unlink(path)
            except OSError:
                continue
            total -= status.st_size


def _closure(source: Path) -> list[Path]:
    """A source and all files of ours that it includes under any condition, each once, sorted."""
    found, waiting = {source}, [source]
    while waiting:
        path = waiting.pop()
        for name in re.findall(rb'^\s*#\s*include\s*"([^"]+)"', path.read_bytes(), re.MULTILINE):
            places = (folder / os.fsdecode(name) for folder in (path.parent, HERE))
            header = next((place for place in places if place.is_file()), None)
            if header is not None and header not in found:
                found.add(header)
                waiting.append(header)
    return sorted(found)


def _run(command: list[str], folder: Path | None = None) -> None:
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise BuildError(f"{command[0]} failed on {command[-3] if '-c' in command else 'linking'}:\n{last}")


def _key(gcc: str, jobs: list[Compilation], linked: tuple[str, ...]) -> str:
    flags = [(job.source.name, job.flags) for job in jobs]
    digest = hashlib.sha256(repr((gcc, FLAGS, flags, linked)).encode())
    for path in sorted({path for job in jobs for path in _closure(job.source)}):
        digest.update(f"{path.parent.name}/{path.name}".encode() + path.read_bytes())
    return digest.hexdigest()


if __name__ == "__main__":  # brings the library of a checkout up to date, as an editable installation does
    try:
        build(HERE / "_core.so")
    except BuildError as error:
        (HERE / "_core.so").unlink(missing_ok=True)
        print(f"the native core was not built: {error}", file=sys.stderr)
