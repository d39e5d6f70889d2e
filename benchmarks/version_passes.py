"""Passes of one version of this project, asked for line by line: what versions.py starts twice and asks in turns.

    python version_passes.py CHECKOUT MODEL PRECISION

A line "ROWS COUNT" on standard input is answered by a line of JSON: the seconds of COUNT passes of ROWS rows each,
after 256 tokens. The model has the named shapes and random weights (forward.py of the checkout,
which also says where that version has its NativeModel).
"""

from __future__ import annotations

import json
import sys
import time

CONTEXT, MOST_ROWS = 256, 256


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
