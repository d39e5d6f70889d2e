"""Building the core, and living without it: each reason is said with what to type, and another executor takes over."""

from __future__ import annotations

import ctypes.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import checkpoint_files
import pytest
from conftest import HAS_IPEX, HAS_NATIVE

import ipex_assist
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.select_executor import resolve_executor
from ipex_assist.native import batch_structures, build, library, structures

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).parents[2]
OBJECTS = os.environ.get(build.CACHE_VARIABLE)  # of this run; most tests must not use it
FALLBACK = "ipex" if HAS_IPEX else "torch"


@pytest.fixture(autouse=True)
def _no_kept_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builds by fake compilers take nothing from the cache of this run, and leave nothing there."""
    monkeypatch.delenv(build.CACHE_VARIABLE, raising=False)


# ---- compilers that do not serve


def fake_compiler(folder: Path, body: str, version: str = "12.2.0") -> Path:
    """A g++ of `version` that otherwise does `body`; $out is the file after -o."""
    script = folder / "g++"
    script.write_text(
        f"""#!/bin/sh
echo "$@" >> {folder}/calls
case "$1" in --version | -dump*) {f"echo {version}" if version else "exit 1"}; exit ;; esac
while [ $# -gt 0 ]; do [ "$1" = -o ] && out=$2; [ "$1" = -c ] && source=$2; shift; done
{body}
"""
    )
    script.chmod(0o755)
    return script


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what is missing, and how it is installed."""
    monkeypatch.setenv("CXX", "g++-nonexistent")
    with pytest.raises(build.BuildError, match=r"no compiler: g\+\+-nonexistent was not found.*apt install g\+\+"):
        build.compiler()


def calls(folder: Path, build_it: Callable[[], None]) -> int:
    """How often `build_it` had the fake compiler in `folder` compile or link."""
    (folder / "calls").unlink(missing_ok=True)
    build_it()
    lines = (folder / "calls").read_text().splitlines()
    return sum(not line.startswith(("-dump", "--version")) for line in lines)


@pytest.mark.parametrize("version", ["9.4.0", "10.2.1", "4"])
def test_a_compiler_that_is_too_old(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a check the build would end in an error about an intrinsic nobody has heard of."""
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "exit 1", version)))
    with pytest.raises(build.BuildError, match=rf"{tmp_path}/g\+\+ is version {version}, 11 or newer is needed"):
        build.compiler()


@pytest.mark.parametrize("version", ["11", "11.4.0", "12.2.0", "15.1"])
def test_a_compiler_that_serves(version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions are numbers, not text: 9 is below 11."""
    script = fake_compiler(tmp_path, "exit 1", version)
    monkeypatch.setenv("CXX", str(script))
    assert build.compiler() == str(script)


def test_a_program_that_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX names a program that does not tell g++'s version, as icpx does not."""
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, "", version="")))
    with pytest.raises(build.BuildError, match=r"does not tell its version; is it g\+\+\?"):
        build.compiler()


def test_another_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    """An Arm machine has no use for the core; it must hear so instead of a page of errors."""
    monkeypatch.setattr(build.platform, "machine", lambda: "aarch64")
    with pytest.raises(build.BuildError, match="x86-64 processor, this is aarch64"):
        build.compiler()


# ---- building


def test_an_error_of_the_compiler_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the file and has the compiler's last lines; nothing half built stays behind."""
    fails = 'for i in $(seq 30); do echo "error: line $i" >&2; done; exit 1'
    body = f'case "$source" in *mixers/attention/attention.cpp) {fails}; esac; touch "$out"'
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, body)))
    with pytest.raises(build.BuildError) as caught:
        build.build(tmp_path / "out" / "core.so")
    message = str(caught.value)
    assert f"failed on {build.HERE}/mixers/attention/attention.cpp:" in message
    assert message.endswith("error: line 29\nerror: line 30")
    assert "error: line 18" not in message
    assert list((tmp_path / "out").iterdir()) == []


def test_an_error_of_the_linker_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The linker fails, as with a g++ without its static parts."""
    body = '[ -n "$source" ] && { touch "$out"; exit; }; echo "cannot find -lstdc++" >&2; exit 1'
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, body)))
    with pytest.raises(build.BuildError, match=r"failed on linking:\ncannot find -lstdc\+\+"):
        build.build(tmp_path / "out" / "core.so")
    assert list((tmp_path / "out").iterdir()) == []


def test_what_is_built_is_not_built_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installing twice costs nothing, other flags or sources cost a build, and a failed one keeps the last good one."""
    monkeypatch.setenv("CXX", str(fake_compiler(tmp_path, 'echo "$source" > "$out"')))

    def builds(**arguments: Any) -> int:
        return calls(tmp_path, lambda: build.build(tmp_path / "out" / "core.so", **arguments))

    everything = len(build.COMMON) + len(build.INSTRUCTION_SETS) + 1
    assert builds() == everything
    assert builds() == 0
    assert builds(flags=("-O1",)) == everything
    assert builds(flags=("-O1",), emulate_amx=True) == everything
    program = tmp_path / "main.cpp"
    program.write_text("int main() {}")
    assert builds(program=[program]) == everything + 1
    assert builds(program=[program]) == 0
    program.write_text("int main() { return 1; }")
    assert builds(program=[program]) == everything + 1
    (tmp_path / "out" / "core.so").unlink()
    assert builds(program=[program]) == everything + 1
    good = (tmp_path / "out" / "core.so").stat()
    fake_compiler(tmp_path, "exit 1")
    with pytest.raises(build.BuildError):
        builds()
    assert (tmp_path / "out" / "core.so").stat() == good


# ---- objects that are kept


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the cache's folder; the compiler is a fake that copies, and the core a small tree."""
    monkeypatch.setenv(
        "CXX", str(fake_compiler(tmp_path, '[ -n "$source" ] && cat "$source" > "$out" || touch "$out"'))
    )
    monkeypatch.setenv(build.CACHE_VARIABLE, str(tmp_path / "objects"))
    core = tmp_path / "core"
    for name, text in {
        "a/a.cpp": '#include "a/a.h"\n',
        "a/a.h": '#include "b.h"\n',
        "a/b.h": "",
        "b/b.cpp": "",
    }.items():
        (core / name).parent.mkdir(parents=True, exist_ok=True)
        (core / name).write_text(text)
    monkeypatch.setattr(build, "HERE", core)
    monkeypatch.setattr(build, "COMMON", (core / "a" / "a.cpp", core / "b" / "b.cpp"))
    monkeypatch.setattr(build, "INSTRUCTION_SETS", {})
    return tmp_path / "objects"


def compiled(folder: Path, output: str, **arguments: Any) -> int:
    """How many objects a build of the small tree compiles; the link is one more call."""
    return calls(folder, lambda: build.build(folder / output / "core.so", **arguments)) - 1


def test_objects_are_shared(objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By builds to several places and from copies of the sources; a header recompiles what includes it, and no more."""
    assert compiled(tmp_path, "one") == 2
    assert compiled(tmp_path, "two") == 0
    assert compiled(tmp_path, "two", flags=("-O1",)) == 2
    shutil.copytree(tmp_path / "core", tmp_path / "elsewhere")
    with monkeypatch.context() as patch:
        patch.setattr(build, "HERE", tmp_path / "elsewhere")
        patch.setattr(build, "COMMON", tuple(tmp_path / "elsewhere" / x / f"{x}.cpp" for x in "ab"))
        assert compiled(tmp_path, "three") == 0
    (tmp_path / "core" / "a" / "b.h").write_text("int changed;")
    assert compiled(tmp_path, "one") == 1
    fake_compiler(tmp_path, 'touch "$out"', version="13.1.0")
    assert compiled(tmp_path, "four") == 2


def test_nothing_is_kept_unless_asked_for(objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install` must not fill a folder that nobody named."""
    monkeypatch.delenv(build.CACHE_VARIABLE)
    assert compiled(tmp_path, "one") == 2
    assert not objects.exists()
    assert compiled(tmp_path, "two") == 2


@pytest.mark.parametrize("fault", ["no folder", "cut short", "changed", "empty"])
def test_a_cache_that_does_not_work(fault: str, objects: Path, tmp_path: Path) -> None:
    """A full disk, or an object cut short by one: it is compiled, and the library is right."""
    if fault == "no folder":
        objects.write_text("a file where a folder should be")
    else:
        assert compiled(tmp_path, "one") == 2
        for path in objects.iterdir():
            data = path.read_bytes()
            path.write_bytes({"cut short": data[:-1], "changed": b"x" + data[1:], "empty": b""}[fault])
    assert compiled(tmp_path, "two") == 2
    assert compiled(tmp_path, "three") == (2 if fault == "no folder" else 0)


def test_the_cache_is_bounded(objects: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was unused the longest goes; what a build took goes last."""
    (tmp_path / "core" / "a" / "b.h").write_text("// " + "x" * 1000)
    (tmp_path / "core" / "b" / "b.cpp").write_text("// " + "x" * 1000)
    for i in range(4):
        assert compiled(tmp_path, "one", flags=(f"-DX={i}",)) == 2
        for path in objects.iterdir():
            os.utime(path, (path.stat().st_atime - 100, path.stat().st_mtime - 100))
    assert compiled(tmp_path, "two", flags=("-DX=0",)) == 0
    kept = sum(path.stat().st_size for path in objects.iterdir())
    monkeypatch.setattr(build.ObjectCache.__init__, "__defaults__", (kept // 2,))
    assert compiled(tmp_path, "three", flags=("-DX=3",)) == 0
    assert sum(path.stat().st_size for path in objects.iterdir()) <= kept // 2
    assert compiled(tmp_path, "four", flags=("-DX=0",)) == 0
    assert compiled(tmp_path, "five", flags=("-DX=1",)) == 2


def test_two_builds_at_once(objects: Path, tmp_path: Path) -> None:
    """To the same place and with the same objects: both end well, and nothing half written is left."""
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda i: build.build(tmp_path / f"out{i % 2}" / "core.so"), range(16)))
    assert sorted(path.name for path in (tmp_path / "out0").iterdir()) == ["core.key", "core.so"]
    assert all(path.suffix == ".o" for path in objects.iterdir())
    assert compiled(tmp_path, "three") == 0


# ---- a library that cannot be used


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return where the core is looked for in this test; there is none."""
    monkeypatch.setattr(library, "PATH", tmp_path / "_core.so")
    library.library.cache_clear()
    yield tmp_path / "_core.so"
    library.library.cache_clear()


def test_a_core_that_was_not_built(core: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`auto` goes on with another executor and says why; `native` is refused with what to do."""
    assert resolve_executor("auto") == FALLBACK
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"using --executor {FALLBACK}: the native core was not built when")
    with pytest.raises(UsageError) as caught:
        resolve_executor("native")
    message = str(caught.value)
    assert message.startswith("--executor native: the native core was not built")
    assert "g++ 11 or newer (Debian, Ubuntu: apt install g++)" in message
    assert message.endswith(f"; or use --executor {FALLBACK}")


def test_the_default_without_a_core(core: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lookup, in Python, as with the core: nothing was drafted there, and who asked for copies was refused."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m")
    model = ipex_assist.load(str(folder), precision="fp32", calibrate=False, draft_history=2**20)
    assert model.identity.assistant == "lookup"
    assert "so lookup drafts (copies from the text); give --assistant-model ID" in caplog.text
    assert "or self" not in caplog.text  # whose int4 the torch executor has not
    how: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True}
    plain = model.generate("the quick", assisted=False, **how)
    first, again = (model.generate("the quick", num_assistant_tokens=6, **how) for _ in range(2))
    assert first.tokens == again.tokens == plain.tokens
    assert again.draft.accepted > 20


def test_precisions_that_only_the_core_has(core: Path) -> None:
    """Without it and without IPEX there is no int4, whatever the core's own precisions are."""
    if HAS_IPEX:
        assert resolve_executor("auto", "int4", "int8") == "ipex"
    else:
        with pytest.raises(UsageError, match=r"the torch executor has no int4 \(only bf16, fp32\): use native"):
            resolve_executor("auto", "bf16", "int4")


def test_a_file_that_is_no_library(core: Path) -> None:
    """The core is a copy that was cut short."""
    core.write_bytes(b"\x7fELF and nothing more")
    reason = library.unavailable()
    assert reason is not None
    assert reason.startswith("the native core cannot be loaded (")
    assert "): install ipex-assist again: pip install --force-reinstall --no-deps" in reason


def test_a_library_of_another_version(core: Path) -> None:
    """An older core that lacks a function must not be found out in the middle of a generation."""
    name = ctypes.util.find_library("m")
    assert name is not None
    mapped = Path("/proc/self/maps").read_text().splitlines()
    core.symlink_to(next(line.split()[-1] for line in mapped if line.endswith(name)))
    reason = library.unavailable()
    assert reason is not None
    assert "undefined symbol: ia_" in reason
    assert "install ipex-assist again: pip install --force-reinstall --no-deps" in reason


@pytest.mark.skipif(not HAS_NATIVE, reason=library.unavailable() or "")
@pytest.mark.parametrize("change", ["version", "structure"])
def test_a_library_of_another_interface(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has every function, and reads another Batch than Python writes: it would crash, or answer wrongly."""

    class LongerBatch(library.Batch):
        _fields_: ClassVar = [("more", ctypes.c_int64)]

    if change == "version":
        monkeypatch.setattr(library, "interface_number", lambda: build.interface_number() + 1)
    else:
        monkeypatch.setattr(library, "Batch", LongerBatch)
    library.library.cache_clear()
    try:
        reason = library.unavailable()
    finally:
        library.library.cache_clear()
    assert reason is not None
    was, wanted = ctypes.sizeof(LongerBatch) - 8, ctypes.sizeof(library.Batch)
    assert re.search(
        rf"its interface is \d+ with structures of \d+, \d+, \d+ and {was} bytes, .* and {wanted}\)", reason
    )
    assert reason.endswith(f"build it again: pip install --no-deps -e {ROOT}")


# ---- what C++ declares and what Python calls

C_TYPES = {
    "void": None,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
    "char*": ctypes.c_char_p,
    "ModelSpec*": ctypes.POINTER(structures.ModelStructure),
    "LayerSpec*": ctypes.POINTER(structures.LayerStructure),
    "Batch*": ctypes.POINTER(library.Batch),
    "DraftRequest*": ctypes.POINTER(library.DraftRequest),
    "TopTokens*": ctypes.POINTER(library.TopTokens),
    "RowChoice*": ctypes.POINTER(batch_structures.CRowChoice),
}


def ctype(declared: str) -> Any:
    """The ctypes type of a result or of a parameter such as "const int32_t*"."""
    plain = declared.replace("const ", "")
    return C_TYPES[plain] if plain in C_TYPES else ctypes.POINTER(C_TYPES[plain.removesuffix("*")])


def test_python_calls_what_is_declared() -> None:
    """Functions of abi/ have the results and parameters that library.py says: ctypes would never notice."""
    text = "\n".join(path.read_text() for path in sorted((build.HERE / "abi").glob("*.cpp")))
    declared = dict(re.findall(r"^IPEX_ASSIST_API ([\w ]+\*? ia_\w+)\(([^)]*)\)", text, re.MULTILINE))
    functions = {}
    for head, parameters in declared.items():
        result, name = head.rsplit(" ", 1)
        functions[name] = (result, [p.rsplit(" ", 1)[0] for p in re.split(r",\s*", parameters) if p])
    assert functions.keys() == library._SIGNATURES.keys()
    for name, (result, parameters) in functions.items():
        expected_result, expected = library._SIGNATURES[name]
        assert len(parameters) == len(expected), name
        for written, called in zip([result, *parameters], [expected_result, *expected], strict=True):
            if "*" in written and called is ctypes.c_void_p:
                continue  # an address
            assert called == ctype(written), f"{name}: {written} is not {called}"


def parts_of(structure: type[ctypes.Structure]) -> list[type[ctypes.Structure]]:
    """A structure, and those within it."""
    types = [each[1] for each in structure._fields_]
    return [structure, *(p for each in types if issubclass(each, ctypes.Structure) for p in parts_of(each))]


def compares(structure: type[ctypes.Structure]) -> list[str]:
    """C++ that compiles if a structure has these fields and no others, in these places, whole numbers or not."""
    kind, names = (
        {"CTaps": "Taps"}.get(structure.__name__, structure.__name__),
        [each[0] for each in structure._fields_],
    )
    lines = [f"void f({kind}& all) {{ auto& [{', '.join(names)}] = all; }}"]
    lines.append(f"static_assert(sizeof({kind}) == {ctypes.sizeof(structure)});")
    for name, of, *_ in structure._fields_:
        at, each, real = getattr(structure, name), f"{kind}::{name}", "true" if of is ctypes.c_float else "false"
        lines.append(f"static_assert(offsetof({kind}, {name}) == {at.offset} && sizeof({each}) == {at.size});")
        lines.append(f"static_assert(std::is_floating_point<decltype({each})>::value == {real});")
    return lines


def test_structures_are_those_declared(tmp_path: Path) -> None:
    """As the compiler sees them: two fields of the same type that change places, or one at the end, keep the size."""
    of_models = (*parts_of(structures.ModelStructure), *parts_of(structures.LayerStructure))
    of_passes = (*parts_of(library.Batch), batch_structures.Segment, library.DraftRequest, library.TopTokens)
    lines = [line for each in dict.fromkeys((*of_models, *of_passes)) for line in compares(each)]
    headers = ['#include "operations/batch.h"', "#include <cstddef>", "#include <type_traits>"]
    source = tmp_path / "structures.cpp"
    source.write_text("\n".join([*headers, "namespace ipex_assist {", *lines, "}"]))
    command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{build.HERE}", str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not HAS_NATIVE, reason=library.unavailable() or "")
def test_a_processor_without_avx2(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """As on an Atom of old: IPEX_ASSIST_ISA=none stands for it."""
    monkeypatch.setenv(library.ISA_VARIABLE, "none")
    assert resolve_executor("auto", "bf16") == FALLBACK
    assert f"using --executor {FALLBACK}: the native core cannot run here" in caplog.text
    assert "IPEX_ASSIST_ISA=none forbids it" in caplog.text
    with pytest.raises(UsageError, match=r"--executor native: the native core cannot run here: .*; or use --executor"):
        resolve_executor("native")
    with pytest.raises(IpexAssistError, match="cannot run here"):
        library.instruction_set()
    monkeypatch.delenv(library.ISA_VARIABLE)
    assert resolve_executor("auto", "bf16") == "native"


@pytest.mark.skipif(not HAS_NATIVE, reason=library.unavailable() or "")
def test_a_better_instruction_set_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What the core says of AMX that the system refuses reaches people once, and reports."""
    assert library.core_state() == library.CoreState(library.instruction_set(), None)
    assert caplog.records == []
    monkeypatch.setattr(library, "last_error", lambda: "this processor has AMX, but")
    for _ in range(2):
        assert library.unavailable() is None
    (record,) = caplog.records
    remark = f"the native core runs on {library.instruction_set()}: this processor has AMX, but"
    assert record.getMessage() == remark
    assert library.core_state() == library.CoreState(library.instruction_set(), remark)
    assert str(library.core_state()) == f"native core works, on {library.instruction_set()} ({remark})"


def test_the_state_of_a_core_that_cannot_be_used(core: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report says why, and does not fail for a slip in a variable either."""
    assert str(library.core_state()).startswith("native core does not work (the native core was not built when")
    monkeypatch.setenv(library.ISA_VARIABLE, "AMX")
    assert "IPEX_ASSIST_ISA=AMX is no instruction set" in str(library.core_state().remark)


def test_the_state_of_the_core_needs_no_torch() -> None:
    """`ipex-assist env` prints it, and must not take seconds for it."""
    code = (
        "from ipex_assist.native.library import core_state; import sys; core_state(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_as_many_compilers_as_there_are_cpus_and_memory_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """os.cpu_count() of them, of some gigabytes each, were killed in a job's cgroup, and the core was missing."""
    job = tmp_path / "job"
    job.mkdir()
    monkeypatch.setattr(build, "_cgroups", lambda: [job, tmp_path])
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    free = build.compilers_at_once()
    assert 1 <= free <= 64
    (job / "cpu.max").write_text("200000 100000\n")
    assert build.compilers_at_once() == min(2, free)
    (job / "cpu.max").write_text("max 100000\n")
    (tmp_path / "memory.max").write_text(f"{13 * 10**9}\n")
    (tmp_path / "memory.current").write_text(f"{10**9}\n")
    assert build.compilers_at_once() == min(4, free)
    (tmp_path / "memory.current").write_text(f"{13 * 10**9}\n")
    assert build.compilers_at_once() == 1
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    (tmp_path / "memory.max").unlink()
    assert build.compilers_at_once() == 1
