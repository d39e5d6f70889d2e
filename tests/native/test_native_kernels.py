"""The C++ core against plain loops (tests/native), also under sanitizers, on every instruction set there is here."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipex_assist.native import build

SOURCES = Path(__file__).parent
ADDR_NO_RANDOMIZE = 0x0040000
GUARDED = ("-Wl,--wrap=mmap", "-Wl,--wrap=munmap", "-Wl,--wrap=syscall")  # tests/native/guard.cpp
FLAGS = {  # for every file, and for the linker; plain: the objects of the library itself
    "plain": (("-O3",), GUARDED),
    "address": (("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"), ()),
    "thread": (("-O1", "-fsanitize=thread"), ()),
}
PARTS = [
    *(
        "packing",
        "linears",
        "rows",
        "attention",
        "levels",
        "model",
        "pruning",
        "adapters",
        "heads",
        "sampling",
        "recurrent",
        "open",
        "refusals",
        "api",
    ),
    *("plan", "threads", "cpu"),
]
Run = Callable[..., str]


def compiler_missing() -> str:
    """Why the core cannot be built here; empty where it can."""
    try:
        build.compiler()
    except build.BuildError as error:
        return str(error)
    return ""


pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(bool(compiler_missing()), reason=compiler_missing())]


def cpu_flags() -> set[str]:
    """Return the flags that the kernel gives for the first processor."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next(line for line in lines if line.startswith("flags")).split())


def compile_program(folder: Path, kind: str) -> Path:
    """The test program and the core with the flags of `kind`.

    Where this processor has no AMX, or a sanitizer would not see into it, its kernels work on plain arrays. The other
    levels keep their own path for many rows, which build(emulate_amx=True) would replace as well.
    """
    flags, link_flags = FLAGS[kind]
    sources = sorted(SOURCES.glob("*.cpp"))
    if kind != "plain":
        sources.remove(SOURCES / "guard.cpp")
    emulated = kind != "plain" or "amx_int8" not in cpu_flags()
    with pytest.MonkeyPatch.context() as patch:
        if emulated:
            levels = build.INSTRUCTION_SETS
            patch.setitem(levels, "amx", (*levels["avx512_bf16"], build.EMULATED))
        if kind == "thread":  # runs avx2 alone; the others are there to be linked
            for name in set(build.INSTRUCTION_SETS) - {"avx2"}:
                patch.setitem(build.INSTRUCTION_SETS, name, (*build.INSTRUCTION_SETS[name], "-O0"))
        build.build(
            folder / "program",
            flags=flags,
            link_flags=link_flags,
            program=sources,
            program_flags=("-O1", "-Werror", *(["-DEMULATED_AMX"] if emulated else [])),
        )
    return folder / "program"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Runs a part of the program in one of its builds, made at the first use; returns what it printed."""
    programs: dict[str, Path] = {}
    libc = ctypes.CDLL(None)

    def run_part(kind: str, *arguments: str, tool: tuple[str, ...] = ()) -> str:
        if kind not in programs:
            programs[kind] = compile_program(tmp_path_factory.mktemp(kind), kind)
        done = subprocess.run(
            [*tool, str(programs[kind]), *arguments],
            capture_output=True,
            text=True,
            timeout=900,
            env={key: value for key, value in os.environ.items() if key != "LD_PRELOAD"},
            # ThreadSanitizer's fixed addresses may be taken otherwise.
            preexec_fn=lambda: libc.personality(ADDR_NO_RANDOMIZE) if kind == "thread" else None,
        )
        print(done.stdout)
        assert done.returncode == 0, f"{kind} {arguments}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    yield run_part
    for program in programs.values():
        shutil.rmtree(program.parent)  # sanitized programs are large


def skip_without_avx2() -> None:
    if not {"avx2", "fma", "f16c"} <= cpu_flags():
        pytest.skip("this processor has no AVX2")


@pytest.mark.parametrize("part", [part for part in PARTS if part != "model"])
def test_plain(part: str, run: Run) -> None:
    """Every kernel gives the right values and bits; buffers end at a page that may not be touched."""
    if part not in ("plan", "threads", "cpu"):
        skip_without_avx2()
    assert ", 0 failed" in run("plain", part)


def test_passes_on_avx2(run: Run) -> None:
    """Of "model", the level that most of it is the same on; the others take long on emulated tiles."""
    skip_without_avx2()
    assert ", 0 failed" in run("plain", "model", "avx2")


@pytest.mark.full
@pytest.mark.parametrize("part", ["model", "heads", "recurrent", "open"])
def test_plain_everywhere(part: str, run: Run) -> None:
    """Of these, what the quick part leaves out: levels and formats that show the same again."""
    skip_without_avx2()
    assert ", 0 failed" in run("plain", part, "all")


@pytest.mark.full  # the plain program's buffers end at pages that may not be touched
@pytest.mark.parametrize("part", PARTS)
def test_address_and_undefined(part: str, run: Run) -> None:
    """A read past a packed block, an overflow, a shift too far: the sanitizers end the program at the first."""
    if part not in ("plan", "threads", "cpu"):
        skip_without_avx2()
    assert ", 0 failed" in run("address", part, *([] if part in ("plan", "threads", "cpu", "levels") else ["all"]))


@pytest.mark.full
def test_races_of_the_pool(run: Run) -> None:
    """A barrier or a run without the order of memory it promises."""
    assert ", 0 failed" in run("thread", "threads")


@pytest.mark.full
def test_races_of_passes(run: Run) -> None:
    """A phase of a pass that reads what another thread still writes: a barrier is missing."""
    skip_without_avx2()
    assert ", 0 failed" in run("thread", "model", "avx2")
    assert ", 0 failed" in run("thread", "pruning", "avx2")
    assert ", 0 failed" in run("thread", "sampling", "avx2")


@pytest.mark.full
def test_races_of_callers(run: Run) -> None:
    """Threads that share a model through the C interface: they take turns at its buffers."""
    skip_without_avx2()
    assert ", 0 failed" in run("thread", "api", "avx2")


def test_threads_that_the_system_refuses(run: Run) -> None:
    """They must be an error that reaches Python, not the end of the process."""
    assert "unavailable" in run("plain", "thread-limit")


def test_levels_are_those_of_the_processor(run: Run) -> None:
    """A wrong bit of CPUID would choose instructions that are not there, or leave out those that are."""
    skip_without_avx2()
    lines = dict(line.split(": ", 1) for line in run("plain", "cpu").splitlines() if ": " in line)
    flags, best = cpu_flags(), "avx2"
    for level in ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"):
        flag = {"avx2_vnni": "avx_vnni", "avx512": "avx512f"}.get(level, level)
        best = level if flag in flags else best
        assert lines[level] == best
    assert lines["none"] == "IPEX_ASSIST_ISA=none forbids it"


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
@pytest.mark.parametrize("part", ["cpu", "threads", "levels"])
def test_valgrind(part: str, run: Run) -> None:
    """It knows AVX2 and no AVX-512: as on a processor without, where the first such instruction ends the program."""
    skip_without_avx2()
    printed = run("plain", part, tool=("valgrind", "-q", "--error-exitcode=9"))
    assert ", 0 failed" in printed
    if part == "cpu":
        assert "amx: avx2\n" in printed
