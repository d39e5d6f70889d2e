"""prefetch.py: kernels compiled with another distance give the same numbers."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import prefetch
import pytest

from ipex_assist.native import library

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("g++") is None or not library.PATH.exists(), reason="there is no native core"),
]


def test_a_distance_changes_no_bits(tmp_path: Path) -> None:
    """A candidate that computes something else would be compared by its speed all the same."""
    isa = library.instruction_set()
    kernels = [
        prefetch.compiled(tmp_path, str(rows), isa, {"FAR_ROWS": rows, "FAR_BYTES": 4096})
        for rows in (1, prefetch.NEVER)
    ]
    work = prefetch.Work(1, weights=1 << 20)
    work.weights[:] = (
        np.random.default_rng(0).integers(0, 1 << 32, work.weights.size, np.uint32) & 0x3FFF3FFF | 0x3C003C00
    )
    for precision in ("bf16", "int8", "int4"):
        for rows in (3, 8, 13):
            found = []
            for each in kernels:
                work.out[:] = 0
                work.multiply(each, precision, rows)(0)
                found.append(work.out.copy())
            assert found[0].any()
            assert np.array_equal(*found), (precision, rows)
