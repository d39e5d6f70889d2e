"""Checksums of the bits that the native core computes: the proof that a change of its code changes none of them.

    python benchmarks/checksums.py --models FOLDER --write FILE
    python benchmarks/checksums.py --models FOLDER --compare FILE [--levels avx2,…] [--match TEXT]

FILE is written by the code before the change and compared by the code after it, both with the tiny checkpoints of
FOLDER, which are made where they are missing. Every family runs in every precision on every instruction set of this
processor, AMX emulated where there is none, in several splits of texts into passes; on one thread, on two, and on two
that believe in a memory node each. To measure a checkout that is not installed, put it first into $PYTHONPATH. The exit
code of a comparison is 1 where a checksum differs or is missing.

A key is "instruction set | threads | model | precision | what was run"; the value is the SHA-256 of logits, tokens and
probabilities, or "refused" where the model cannot have that precision.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from checksums_models import EMULATED, LEVELS, SETUPS, Setup, has_experts, make_models, precisions_of, runs_on
from checksums_patterns import Bits, load, patterns_of

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.native import build, library

NODES = "/sys/devices/system/node"

# ---- one process: an instruction set and a setup


def checksums(name: str, precision: str, checkpoint: Path, setup: Setup) -> dict[str, str]:
    """Of all that is run on one model, by name."""
    try:
        model = load(checkpoint, precision)
        if "disk" in precision:
            del model
            model = load(checkpoint, precision)  # this time from there
    except IpexAssistError:
        return {"load": "refused"}
    found = {}
    for pattern, run in patterns_of(name, precision, checkpoint, setup):
        bits = Bits()
        run(model, bits)
        found[pattern] = bits.hex()
    return found


def run_here(level: str, setup: Setup, models: Path, names: Sequence[str]) -> dict[str, str]:
    """All checksums of an instruction set and a setup; none where this processor has not got it."""
    if level == EMULATED:
        library.PATH = emulated_core(models)
    if library.instruction_set() != level.split()[-1]:
        return {}
    found: dict[str, str] = {}
    for name in names:
        if runs_on(name, setup):
            for precision in precisions_of(name, has_experts(models / name), level, setup):
                for pattern, checksum in checksums(name, precision, models / name, setup).items():
                    found[" | ".join((level, setup.name, name, precision, pattern))] = checksum
    return found


def child(args: argparse.Namespace) -> int:
    """What a process of `started` does."""
    setup = SETUPS[args.child]
    assert torch.get_num_threads() == setup.threads
    names = sorted(path.parent.name for path in args.models.glob("*/config.json") if args.match in path.parent.name)
    args.write.write_text(json.dumps(run_here(args.levels, setup, args.models, names)))
    return 0


# ---- all processes


def emulated_core(models: Path) -> Path:
    """Where the core with plain arrays for AMX's tiles is kept, for each checkout its own."""
    return models / f"core-{hashlib.sha256(str(library.PATH).encode()).hexdigest()[:12]}" / "_core.so"


def levels_here() -> list[str]:
    """The instruction sets of this processor, as far as the core knows; emulated tiles where it has none of its own."""
    flags = Path("/proc/cpuinfo").read_text()
    emulated = "avx512_bf16" in flags and "amx_tile" not in flags
    return [level for level in LEVELS if level != EMULATED or emulated]


def started(level: str, setup: Setup, cpus: Sequence[int], args: argparse.Namespace) -> dict[str, str]:
    """The checksums of a process on these CPUs."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        environment = {
            **os.environ,
            library.ISA_VARIABLE: "" if level == EMULATED else level,
            "OMP_NUM_THREADS": str(setup.threads),
            "XDG_CACHE_HOME": folder,
            "HF_HUB_OFFLINE": "1",
        }
        command = ["taskset", "--cpu-list", ",".join(map(str, cpus)), sys.executable, __file__, "--child", setup.name]
        command += [
            "--levels",
            level,
            "--models",
            str(args.models),
            "--write",
            str(own / "found"),
            "--match",
            args.match,
        ]
        if setup.nodes > 1:
            command = [*with_nodes(own / "nodes", cpus), *command]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise IpexAssistError(f"{level}, {setup.name}: exit code {done.returncode}\n{done.stderr[-4000:]}")
        found: dict[str, str] = json.loads((own / "found").read_text())
    print(f"{level}, {setup.name}: {len(found)} checksums in {time.perf_counter() - begun:.0f} s", flush=True)
    return found


def with_nodes(folder: Path, cpus: Sequence[int]) -> list[str]:
    """The start of a command for which each CPU is on a memory node of its own: as /sys says there."""
    for node, cpu in enumerate(cpus):
        (folder / f"node{node}" / f"cpu{cpu}").mkdir(parents=True)
        (folder / f"node{node}" / "cpulist").write_text(f"{cpu}\n")
    mount = f'mount --bind "$0" {NODES} && exec "$@"'
    return ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(folder)]


def all_checksums(args: argparse.Namespace, levels: Sequence[str]) -> Iterator[dict[str, str]]:
    """Those of each process. Processes of one thread run beside each other, those of two one after another."""
    cpus = sorted(os.sched_getaffinity(0))
    free: queue.SimpleQueue[int] = queue.SimpleQueue()
    for cpu in cpus[: args.jobs]:
        free.put(cpu)

    def alone(level: str) -> dict[str, str]:
        cpu = free.get()
        try:
            return started(level, SETUPS["1 thread"], [cpu], args)
        finally:
            free.put(cpu)

    slowest_first = sorted(levels, key=LEVELS.index, reverse=True)
    with ThreadPoolExecutor(args.jobs) as pool:
        yield from pool.map(alone, slowest_first)
    for setup in SETUPS.values():
        if 1 < setup.threads <= len(cpus):
            for level in slowest_first:
                yield started(level, setup, cpus[: setup.threads], args)


# ---- the comparison


def differing(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """A line for each checksum of `after` that is another one in `before`, or not there."""
    return [
        f"differs: {key} ({before[key]} → {checksum})" if key in before else f"new, and compared with nothing: {key}"
        for key, checksum in after.items()
        if before.get(key) != checksum
    ]


def compare(before: dict[str, str], parts: Iterable[dict[str, str]]) -> int:
    """Print what differs, as soon as it is known, and how much is equal; the exit code."""
    found: dict[str, str] = {}
    for part in parts:
        found |= part
        for line in differing(before, part):
            print(line, flush=True)
    for key in before.keys() - found.keys():
        print(f"missing: {key}")
    equal = sum(found.get(key) == checksum for key, checksum in before.items())
    print(f"{equal} of {len(before)} checksums are equal")
    return int(equal < len(before) or not before)


def strangers(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    """Checkpoints that are not those of the same name in a file, with which nothing can be proven."""
    return [name for name, checksum in found.items() if expected.get(name, checksum) != checksum]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="folder of the checkpoints")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("--write", type=Path, metavar="FILE")
    task.add_argument("--compare", type=Path, metavar="FILE")
    parser.add_argument("--levels", help="instruction sets, by commas; all of this processor")
    parser.add_argument("--match", default="", help="only models whose names hold this")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes of one thread")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.child:
        return child(args)
    checkout = library.PATH.parents[2]
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, cwd=checkout, capture_output=True, text=True).stdout.strip()
    levels = args.levels.split(",") if args.levels else levels_here()
    models = make_models(args.models)
    if EMULATED in levels:
        build.build(emulated_core(args.models), emulate_amx=True)
    print(f"the code of {checkout} ({commit})", flush=True)
    if args.write:
        found: dict[str, str] = {}
        for part in all_checksums(args, levels):
            found |= part
            result = {"commit": commit, "models": models, "checksums": found}
            args.write.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
        print(f"{len(found)} checksums")
        return 0
    expected = json.loads(args.compare.read_text())
    if unknown := strangers(expected["models"], models):
        print(f"{args.models} has other checkpoints than {args.compare}, so that nothing is proven: {unknown}")
        return 1

    def wanted(key: str) -> bool:
        level, _, model, *_ = key.split(" | ")
        return level in levels and args.match in model

    before = {key: checksum for key, checksum in expected["checksums"].items() if wanted(key)}
    return compare(before, all_checksums(args, levels))


if __name__ == "__main__":
    sys.exit(main())
