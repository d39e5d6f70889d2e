"""Finding libraries to preload, in folders made for the purpose."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import pytest

from ipex_assist.env.libraries import environment_dirs, find_libraries, is_preloadable, linker_dirs

pytestmark = pytest.mark.one_stack


def shared_object(path: Path, *, bits: int = 64) -> Path:
    """A file with the ELF header of a library for this processor (or its 32-bit kind)."""
    header = bytearray(Path("/proc/self/exe").read_bytes()[:64])
    header[4] = 2 if bits == 64 else 1
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(header)
    return path


def test_versioned_names_are_found(tmp_path: Path) -> None:
    """Catches looking for libtcmalloc.so only, which Debian has in the -dev package alone."""
    tcmalloc = shared_object(tmp_path / "libtcmalloc_minimal.so.4")
    jemalloc = shared_object(tmp_path / "libjemalloc.so.2")
    found = find_libraries({}, [tmp_path])
    assert (found.tcmalloc, found.jemalloc, found.libiomp5) == (str(tcmalloc), str(jemalloc), None)
    assert found.allocator == str(tcmalloc)


@pytest.mark.parametrize(
    ("names", "best"),
    [
        (["libtcmalloc.so.4.5.10", "libtcmalloc.so.4"], "libtcmalloc.so.4"),
        (["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"], "libtcmalloc.so.4"),
        (["libtcmalloc.so.4", "libtcmalloc.so"], "libtcmalloc.so"),
        (["libtcmalloc_minimal_debug.so.4", "libtcmalloc_and_profiler.so.4", "libtcmalloc_debug.so.4"], None),
    ],
)
def test_which_of_several_names(names: list[str], best: str | None, tmp_path: Path) -> None:
    """Catches the debug variants, which are many times slower."""
    for name in names:
        shared_object(tmp_path / name)
    assert find_libraries({}, [tmp_path]).tcmalloc == (str(tmp_path / best) if best else None)


def test_the_environment_comes_before_the_system(tmp_path: Path) -> None:
    """Catches preloading the system's libiomp5 beside the venv's newer one."""
    ours = shared_object(tmp_path / "venv/libiomp5.so")
    shared_object(tmp_path / "system/libiomp5.so")
    assert find_libraries({}, [tmp_path / "missing", tmp_path / "venv", tmp_path / "system"]).libiomp5 == str(ours)


def test_where_it_looks() -> None:
    """Catches forgetting the interpreter's own folder when another environment is activated around it."""
    folders = environment_dirs({"CONDA_PREFIX": "/conda", "VIRTUAL_ENV": "/venv", "LD_LIBRARY_PATH": "/a::/b"})
    assert folders[0] == f"{sys.prefix}/lib"
    assert folders.index("/venv/lib") < folders.index("/conda/lib") < folders.index("/a") < folders.index("/b")


def test_what_the_linker_would_refuse_is_passed_over(tmp_path: Path) -> None:
    """Catches ld.so's error on every start: linker scripts, 32-bit libraries, dangling links, blanks in paths."""
    script = tmp_path / "a/libiomp5.so"
    script.parent.mkdir()
    script.write_text("INPUT(-liomp5)\n")
    shared_object(tmp_path / "b/libiomp5.so", bits=32)
    (tmp_path / "c").mkdir()
    (tmp_path / "c/libiomp5.so").symlink_to("nowhere.so")
    shared_object(tmp_path / "with blank/libiomp5.so")
    shared_object(tmp_path / "with:colon/libiomp5.so")
    arm = shared_object(tmp_path / "d/libiomp5.so")
    content = bytearray(arm.read_bytes())
    struct.pack_into("<H", content, 18, 0x1234)
    arm.write_bytes(content)
    folders = [tmp_path / name for name in ("a", "b", "c", "d", "with blank", "with:colon")]
    assert find_libraries({}, folders).libiomp5 is None
    good = shared_object(tmp_path / "e/libiomp5.so")
    assert is_preloadable(str(good))
    assert find_libraries({}, [*folders, good.parent]).libiomp5 == str(good)


def test_folders_of_the_dynamic_linker(tmp_path: Path) -> None:
    """Catches missing what a site installed elsewhere and told the linker of; comments and includes are no folders."""
    (tmp_path / "site.conf").write_text("# /not/this\n/opt/intel/lib\n\ninclude /etc/other\n  /opt/b/lib  \n")
    (tmp_path / "ignored.txt").write_text("/not/that\n")
    assert linker_dirs(tmp_path) == ["/opt/intel/lib", "/opt/b/lib"]
    assert linker_dirs(tmp_path / "missing") == []


def test_a_library_that_cannot_be_preloaded_is_not_said_to_be_missing(tmp_path: Path) -> None:
    """LD_PRELOAD is split at blanks: to install what is there already would be no help."""
    folder = tmp_path / "my env"
    library = shared_object(folder / "libiomp5.so")
    found = find_libraries({}, [folder])
    assert found.libiomp5 is None
    [line] = [line for line in found.missing() if "libiomp5" in line]
    assert f"{library} is there, but LD_PRELOAD takes no path with blanks" in line
    assert "pip install intel-openmp" in find_libraries({}, [tmp_path]).missing()[0]
