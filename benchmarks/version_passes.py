"""Passes of one version of this project, asked for line by line: what versions.py starts twice and asks in turns.

    python version_passes.py CHECKOUT MODEL PRECISION

A line "ROWS COUNT" on standard input is answered by a line of JSON: the seconds of COUNT passes of ROWS rows each,
after 256 tokens. The model has the named shapes and random weights (forward.py of the checkout,
which also says where that version has its NativeModel).
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
import time
from pathlib import Path

CONTEXT, MOST_ROWS = 256, 256
COLLAPSE, HUGE_PAGE = 25, 1 << 21  # madvise's number, Linux 6.1


def join_pages() -> None:
    """Have the memory of this process in huge pages, where the kernel can: who starts later often gets small ones.

    Of the same code a pass of 16 rows then took 10 % longer.
    """
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    for line in Path("/proc/self/maps").read_text().splitlines():
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) rw-p \S+ \S+ 0\b", line)
        if found and int(found[2], 16) - int(found[1], 16) >= HUGE_PAGE:
            first = -(-int(found[1], 16) // HUGE_PAGE) * HUGE_PAGE
            madvise(first, int(found[2], 16) // HUGE_PAGE * HUGE_PAGE - first, COLLAPSE)


def main(root: str, name: str, precision: str) -> None:
    """Load the model by the code of the checkout `root`, say "ready", and answer until standard input ends."""
    sys.path[:0] = [root, f"{root}/benchmarks"]
    import forward
    import torch

    import ipex_assist

    assert (ipex_assist.__file__ or "").startswith(root), f"{ipex_assist.__file__} is not of {root}"
    torch.set_num_threads(1)
    model = forward.NativeModel(forward.load(name, precision), kv_precision="fp32" if precision == "fp32" else "bf16")
    sequence = model.new_sequence(CONTEXT + MOST_ROWS)
    for position in range(0, CONTEXT, 16):  # touches each page of it
        sequence.length = position
        model.extend(sequence, [1])
    join_pages()
    print("ready", flush=True)
    for line in sys.stdin:
        rows, count = map(int, line.split())
        seconds = []
        for _ in range(count):
            sequence.length = CONTEXT
            started = time.perf_counter()
            model.extend(sequence, [1] * rows, last=rows)
            seconds.append(time.perf_counter() - started)
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
