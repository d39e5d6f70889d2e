"""First start and second start of `ipex-assist`: seconds from the process to its first token, and to its end.

    python benchmarks/starting.py MODEL [--repeats 5] [--prompt TEXT] [--cache FOLDER] [-- --precision int4 …]
    python benchmarks/starting.py FILE.gguf --stored [--repeats 5] …

Each turn is three processes: Python that does nothing, a start that packs the weights and keeps them, and one that
takes that packed copy. What follows -- goes to ipex-assist. Every turn packs into a new folder within --cache, which
needs as much room as the packed weights, and is emptied. A first turn, which is not counted, reads the model's files
into memory.

With --stored, of a file that is computed as it is stored, of which no copy is kept: a process that reads the file, 8 MB
after the other into the same place; one that reads it into memory of its size, which the system must clear first; one
that loads the model, of which what comes before (Python, imports, threads) does not count; and a start. Once with the
file in the system's memory and once from the disk.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import measure

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError

NOTHING = [sys.executable, "-c", "pass"]
IPEX_ASSIST = [sys.executable, "-m", "ipex_assist"]
FIRST, SECOND, PYTHON = "first start", "second start", "python -c pass"
MEMORY, DISK = "from memory", "from disk"
READ = """
import sys
print("begins", flush=True)
buffer = bytearray(8 << 20)
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
"""
READ_WHOLE = """
import mmap, os, sys
print("begins", flush=True)
for path in sys.argv[1:]:
    with open(path, "rb", buffering=0) as file:
        memory = mmap.mmap(-1, os.path.getsize(path))
        memory.madvise(mmap.MADV_HUGEPAGE)
        rest = memoryview(memory)
        while count := file.readinto(rest):
            rest = rest[count:]
os._exit(0)
"""
LOAD = """
import os, sys
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.loading import planned_pool
planned_pool()
print("begins", flush=True)
checkpoint = open_checkpoint(sys.argv[1], offline=True)
load_model(LoadRequest(checkpoint, checkpoint.stored_precision or "bf16", "native"))
os._exit(0)
"""


def timed(argv: Sequence[str], cache: Path) -> tuple[float, float]:
    """Seconds until the process writes its first byte, or ends without any, and until it ends.

    Raises IpexAssistError with what it complained of.
    """
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    with tempfile.TemporaryFile() as complaints:
        started = time.perf_counter()
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=complaints, env=environment) as process:
            assert process.stdout is not None
            os.read(process.stdout.fileno(), 1)
            first = time.perf_counter() - started
            process.stdout.read()
        whole = time.perf_counter() - started
        if process.returncode:
            complaints.seek(0)
            said = complaints.read().decode(errors="replace").strip()[-2000:]
            raise IpexAssistError(f"{argv[0]} … ended with {process.returncode}: {said}")
    return first, whole


def turn(args: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """What each of the three took."""
    with tempfile.TemporaryDirectory(dir=args.cache) as folder:
        cache = Path(folder)
        model = [*IPEX_ASSIST, "-m", args.model, "-p", args.prompt, "--raw", "--max-new-tokens", "1"]
        found = {PYTHON: timed(NOTHING, cache)}
        if args.stored:
            return found | stored_starts([*model, *args.flags], args.model, cache)
        model.append("--cache-packed")
        for name in (FIRST, SECOND):
            found[name] = timed([*model, *args.flags], cache)
            if not list(cache.rglob("*.packed")):
                raise IpexAssistError(f"{args.model}: no packed copy is kept under {args.cache}. Is there room?")
    return found


def stored_starts(model: Sequence[str], source: str, cache: Path) -> dict[str, tuple[float, float]]:
    """What reading the files takes, loading them and a start; IpexAssistError where one of these keeps something."""
    files = open_checkpoint(source, offline=True).weight_files()
    reading, whole = ([sys.executable, "-c", script, *map(str, files)] for script in (READ, READ_WHOLE))
    loading = [sys.executable, "-c", LOAD, source]
    found = {}
    for where in (MEMORY, DISK):
        for name, argv in (("reading", reading), ("reading whole", whole), ("loading", loading), (FIRST, model)):
            if where == DISK:
                for path in files:
                    forget(path)
            begun, ended = timed(argv, cache)
            found[f"{name} {where}"] = (begun, ended) if name == FIRST else (0.0, ended - begun)
    if kept := list(cache.rglob("*.packed")):
        raise IpexAssistError(f"{source}: it is not computed as it is stored, {kept[0].name} was written")
    return found


def forget(path: Path) -> None:
    """Let the system drop a file from its memory."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def against_reading(name: str, turns: Sequence[dict[str, tuple[float, float]]]) -> str:
    """How many times as long as reading from the same place something takes: the median of turns, and the extremes."""
    reading = next((f"reading {where}" for where in (MEMORY, DISK) if name.endswith(where)), None)
    if reading is None:
        return ""
    ratios = [each[name][1] / each[reading][1] for each in turns]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options, and after -- those of ipex-assist."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompt", default="The capital of France is")
    parser.add_argument("--stored", action="store_true", help="of a file whose weights stay as they are")
    parser.add_argument("--cache", default=tempfile.gettempdir())
    given = sys.argv[1:] if argv is None else argv
    cut = given.index("--") if "--" in given else len(given)
    args = parser.parse_args(given[:cut])
    args.flags = given[cut + 1 :]
    return args


def run(args: argparse.Namespace) -> int:
    """Measure, print a table and JSON."""
    turn(args)
    turns = [turn(args) for _ in range(args.repeats)]
    rows, results = [], []
    for name in turns[0]:
        first, whole = (measure.summary([each[name][part] for each in turns]) for part in (0, 1))
        results.append({"start": name, "first_token_s": first, "whole_s": whole})
        token = {"first token s": f"{first['median']:.2f}", "spread": f"{first['min']:.2f} to {first['max']:.2f}"}
        none = dict.fromkeys(token, "")  # these write nothing
        starts = name.startswith((FIRST, SECOND))
        rows.append({"start": name, **(token if starts else none), "to its end s": f"{whole['median']:.2f}"})
        if args.stored:
            rows[-1]["÷ reading"] = against_reading(name, turns)
    measure.report(rows, {"model": args.model, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
