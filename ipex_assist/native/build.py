"""Compiles the native core with g++. Run by setup.py before the package can be imported: standard library only."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).resolve().parent
OLDEST_GCC = 11  # the first with AMX intrinsics
KERNELS = HERE / "kernels" / "kernels.cpp"
COMMON = tuple(path for path in sorted(HERE.glob("*/*.cpp")) if path != KERNELS)
# kernels.cpp is compiled once for each of these; kernels/dispatch.cpp chooses among them when the library is loaded.
INSTRUCTION_SETS = {
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "avx2_vnni": ("-mavx2", "-mfma", "-mf16c", "-mavxvnni"),
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c", "-mavx2"),
    "avx512_vnni": ("-march=cascadelake",),
    "avx512_bf16": ("-march=cooperlake",),
    "amx": ("-march=sapphirerapids",),
}
# A product and a sum are rounded once only where the source says so: what compilers choose differs by level.
FLAGS = ("-std=c++17", "-fPIC", "-pthread", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off", "-g1")
WARNINGS = (
    "-Wall",
    "-Wextra",
    "-Wno-ignored-attributes",  # vector types as template arguments
    "-Wno-maybe-uninitialized",  # gcc's own intrinsics headers
    "-Wno-uninitialized",
)


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
    output: Path, *, flags: tuple[str, ...] = ("-O3",), program: Path | None = None, emulate_amx: bool = False
) -> None:
    """Compile the library to `output`, or, with `program`, an executable of that source and the core's.

    flags: for every file, such as -fsanitize=address. emulate_amx: with amx_tiles.h's plain arrays in place of AMX, so
    that the code on them runs on processors without it (dispatch.cpp then chooses kernels_amx()). Nothing is done where
    `output` was built from the same sources with the same flags. Raises BuildError.
    """
    gcc = compiler()
    if emulate_amx:
        flags = (*flags, "-DIPEX_ASSIST_EMULATE_AMX")
    key = _key(gcc, flags, program)
    stamp = output.with_suffix(".key")
    if output.exists() and stamp.exists() and stamp.read_text() == key:
        return
    output.parent.mkdir(parents=True, exist_ok=True)
    work = output.parent / f".{output.name}.{os.getpid()}"
    work.mkdir()
    try:
        jobs: list[tuple[Path, Path, tuple[str, ...]]] = [
            (path, work / f"{path.parent.name}_{path.name}.o", ()) for path in COMMON
        ]
        for name, isa in INSTRUCTION_SETS.items():
            if emulate_amx and name == "amx":
                isa = INSTRUCTION_SETS["avx512_bf16"]
            defines = (f"-DIPEX_ASSIST_KERNELS=kernels_{name}", f'-DIPEX_ASSIST_ISA_NAME="{name}"')
            jobs.append((KERNELS, work / f"kernels_{name}.o", (*isa, *defines)))
        if program is not None:
            jobs.append((program, work / "program.o", ()))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(lambda job: _compile(gcc, job[0], job[1], (*flags, *job[2])), jobs))
        kind = () if program is not None else ("-shared",)
        objects = [str(job[1]) for job in jobs]
        _run([gcc, *kind, *FLAGS, *flags, *objects, "-o", str(work / "linked")])
        os.replace(work / "linked", output)
        stamp.write_text(key)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(gcc: str, source: Path, output: Path, flags: tuple[str, ...]) -> None:
    _run([gcc, *FLAGS, *WARNINGS, f"-I{HERE}", *flags, "-c", str(source), "-o", str(output)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-12:])
        raise BuildError(f"{command[0]} failed on {command[-3] if '-c' in command else 'linking'}:\n{last}")


def _key(gcc: str, flags: tuple[str, ...], program: Path | None) -> str:
    digest = hashlib.sha256(repr((gcc, flags, FLAGS, INSTRUCTION_SETS)).encode())
    sources = [*sorted(HERE.glob("*/*.cpp")), *sorted(HERE.glob("*/*.h")), *([program] if program else [])]
    for path in sources:
        digest.update(f"{path.parent.name}/{path.name}".encode() + path.read_bytes())
    return digest.hexdigest()
