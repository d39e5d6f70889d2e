""".ci/native_includes.py: the core's folders include each other in one order."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

CHECK = Path(__file__).resolve().parents[2] / ".ci" / "native_includes.py"
pytestmark = pytest.mark.one_stack


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("native_includes", CHECK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def core(folder: Path, files: dict[str, str]) -> Path:
    """Files of a core by what each includes."""
    for name, included in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f'#include "{each}"\n' for each in included.split()))
    return folder


def test_the_core_is_in_order() -> None:
    check = loaded()
    assert check.faults(check.NATIVE) == []


@pytest.mark.parametrize(
    ("files", "fault"),
    [
        (
            {"packing/a.h": "abi/b.h", "abi/b.h": ""},
            "packing/a.h (packing) includes abi/b.h (abi), which comes later",
        ),
        ({"formats/int8/format.h": "kernels/k.h", "kernels/k.h": ""}, "which comes later"),
        ({"packing/a.h": "packing/b.h", "packing/b.h": "packing/a.h"}, "packing/a.h -> packing/b.h -> packing/a.h"),
        ({"elsewhere/a.h": ""}, "elsewhere/a.h is in no room"),
        ({"packing/a.cpp": "packing/gone.h"}, "packing/a.cpp includes packing/gone.h, which is no file of a room"),
    ],
)
def test_what_is_out_of_order_is_named(files: dict[str, str], fault: str, tmp_path: Path) -> None:
    """An arrow back, a circle, a folder without a place and a file that is not there: the check can fail."""
    (line,) = loaded().faults(core(tmp_path, files))
    assert fault in line


def test_downward_includes_are_free(tmp_path: Path) -> None:
    files = {"abi/a.cpp": "operations/o.h refuse.h", "operations/o.h": "packing/p.h", "packing/p.h": "", "refuse.h": ""}
    assert loaded().faults(core(tmp_path, files)) == []
