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
import functools
import hashlib
import json
import os
import queue
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

# All that is used of the project.
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import DraftInput, Rows, TokenLogprob
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native import NativeModel
from ipex_assist.native import build, library

TESTS = Path(__file__).resolve().parents[1] / "tests"  # tiny models are made there
NODES = "/sys/devices/system/node"

# ---- what is run


@dataclass(frozen=True)
class Setup:
    """Threads, and whether each believes to be on a memory node of its own."""

    name: str
    threads: int
    nodes: int = 1


SETUPS = {each.name: each for each in (Setup("1 thread", 1), Setup("2 threads", 2), Setup("2 nodes", 2, 2))}
EMULATED = "emulated amx"
LEVELS = ("avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16", "amx", EMULATED)

# One of each kind of layer: these run in more precisions, on more threads, and on memory nodes.
KINDS = (
    *("llama", "llama-odd-sizes", "llama-dynamic", "mistral-window", "qwen3", "opt-350m", "gpt-bigcode"),
    *(
        "phi3-longrope",
        "granite",
        "olmo2",
        "stablelm-parallel",
        "gemma2",
        "falcon-new",
        "gptj",
        "bloom",
        "cohere-norms",
    ),
    *("mixtral", "qwen2-moe", "olmoe-biases", "gpt-oss", "gpt-oss-mxfp4", "wide", "wide-experts", "wide-heads"),
)
# Sizes that are no multiples of a tile, a span or a chunk of a sum, and more of each than one.
WIDER: dict[str, tuple[str, dict[str, Any]]] = {
    "wide": (
        "llama-biases",
        {"hidden_size": 1100, "intermediate_size": 2100, "num_attention_heads": 10, "head_dim": 80, "vocab_size": 1000},
    ),
    "wide-heads": (
        "gemma2",
        {"hidden_size": 320, "intermediate_size": 700, "num_attention_heads": 16, "head_dim": 256, "vocab_size": 333},
    ),
    "wide-experts": (
        "qwen2-moe",
        {"hidden_size": 320, "moe_intermediate_size": 224, "num_experts": 33, "shared_expert_intermediate_size": 300},
    ),
    "wide-mixtral": ("mixtral", {"hidden_size": 256, "intermediate_size": 416, "num_local_experts": 9}),
}
# Texts of more than one run of 2,048 positions.
_LONGER = {"max_position_embeddings": 8192}
LONG: dict[str, tuple[str, dict[str, Any]]] = {
    "long-llama": ("llama", _LONGER),
    "long-heads": (
        "llama",
        {"hidden_size": 80, "num_attention_heads": 20, "num_key_value_heads": 1, "head_dim": 40, **_LONGER},
    ),
    "long-window": ("mistral-window", {"sliding_window": 3000, **_LONGER}),
    "long-gemma2": ("gemma2", {"sliding_window": 700, **_LONGER}),
    "long-gpt-oss": ("gpt-oss", {"sliding_window": 700, **_LONGER}),
    "long-bloom": ("bloom", {}),
}
LONG_TEXT = {"long-window": 4300}  # tokens; others have 2,300
# Checkpoints that come with 4 bits of their own, stored by tests/quantized_files.py.
QUANTIZED: dict[str, dict[str, Any]] = {
    "gptq": {},
    "gptq-32-sym": {"group": 32, "sym": True},
    "gptq-column": {"group": -1},
    "gptq-act-order": {"act_order": True},
    "gptq-act-order-each": {"act_order": "each", "group": 64},
    "gptq-opt": {"variant": "opt", "group": 32},
    "gptq-bigcode": {"variant": "gpt-bigcode", "group": 32},
    "gptq-mixtral-act-order": {"variant": "mixtral", "group": 32, "act_order": True},
    "awq": {"kind": "awq"},
    "awq-32-sym": {"kind": "awq", "group": 32, "sym": True},
}
MXFP4 = "gpt-oss-mxfp4"

# The precision of linears, with int4's columns a scale, and behind a plus that of keys and values.
BASE = ("fp32", "bf16", "int8", "int4")
FURTHER = ("int4-32", "int4-128", "fp32+bf16", "fp32+int8", "bf16+int8", "int8+int8", "int4+int8")
FROM_DISK = ("int8 from disk", "int4 from disk")  # packed, kept and taken from there


def precisions_of(model: str, experts: bool, level: str, setup: Setup) -> tuple[str, ...]:
    """What a model runs in; of those that take long on emulated tiles, fewer there."""
    if model in QUANTIZED:
        return ("int4", "int4+int8", "int4 from disk", "int8") if setup.threads == 1 else ("int4",)
    mxfp4 = ("mxfp4",) if experts else ()
    if model in LONG:
        return (*BASE, *mxfp4, "fp32+int8", "bf16+int8", "int4+int8")
    if model not in KINDS or (model in WIDER and level == EMULATED):
        return (*BASE, *mxfp4)
    disk = (*FROM_DISK, *(f"{each} from disk" for each in mxfp4))
    if setup.nodes > 1:
        return (*BASE, *mxfp4, "bf16+int8", *disk)
    if setup.threads > 1:
        return (*BASE, *mxfp4)
    return (*BASE, *FURTHER, *mxfp4, *(f"{each}+int8" for each in mxfp4), *disk)


def runs_on(model: str, setup: Setup) -> bool:
    """Whether a setup has the model at all: families that differ by names alone are shared by threads in one way."""
    if setup.nodes > 1:
        return model in KINDS or model in ("long-window", "gptq-act-order")
    return setup.threads == 1 or model in KINDS or model in LONG or model in QUANTIZED


# ---- the patterns: texts in passes of some rows, and the bits that come out


class Bits:
    """A checksum of what is put in."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def logits(self, found: torch.Tensor) -> None:
        """Add rows of logits."""
        self._digest.update(struct.pack("<qq", *found.shape) + found.float().contiguous().numpy().tobytes())

    def choices(self, found: Sequence[TokenLogprob]) -> None:
        """Add tokens with their probabilities, and the likeliest."""
        for each in found:
            self._digest.update(struct.pack("<if", each.token, each.log_probability))
            for token, log in each.top:
                self._digest.update(struct.pack("<if", token, log))

    def drafts(self, found: Sequence[tuple[list[int], list[float]]]) -> None:
        """Add drafted tokens with their probabilities."""
        for tokens, probabilities in found:
            self._digest.update(struct.pack(f"<i{len(tokens)}i{len(tokens)}f", len(tokens), *tokens, *probabilities))

    def hex(self) -> str:
        """Return 128 bits of it."""
        return self._digest.hexdigest()[:32]


def text(count: int, seed: int = 0) -> list[int]:
    """Random tokens; every model has these."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(160, (count,), generator=generator).tolist()


PROMPT = text(40)
CAPACITY = 100
FEWER = 100  # of the vocabulary


def prompt(model: NativeModel, bits: Bits) -> None:
    """More rows than a step's, in one pass."""
    bits.logits(model.extend(model.new_sequence(CAPACITY), PROMPT, len(PROMPT)))


def chunks(model: NativeModel, bits: Bits) -> None:
    """The same prompt, cut."""
    sequence = model.new_sequence(CAPACITY, len(PROMPT))
    for first, last in ((0, 7), (7, 24), (24, 40)):
        bits.logits(model.extend(sequence, PROMPT[first:last], last - first))


def steps(model: NativeModel, bits: Bits) -> None:
    """Token by token."""
    sequence = model.new_sequence(CAPACITY)
    for token in PROMPT[:14]:
        bits.logits(model.extend(sequence, [token]))


def passes(model: NativeModel, bits: Bits) -> None:
    """Passes of 2 to 16 rows, and of 17 to 33, behind some tokens to which the text is cut back."""
    sequence = model.new_sequence(CAPACITY, 5)
    model.extend(sequence, PROMPT[:5])
    for rows in (*range(2, 18), 33):
        bits.logits(model.extend(sequence, PROMPT[5 : 5 + rows], rows))
        sequence.truncate(5)


def together(model: NativeModel, bits: Bits) -> None:
    """Rows of several texts in one pass, a few and many; one of them shares the beginning of another."""
    first = model.new_sequence(CAPACITY)
    model.extend(first, PROMPT[:20], 0)
    texts = [first, first.fork(9), *(model.new_sequence(CAPACITY, count) for count in (3, 21, 1))]
    bits.logits(
        model.forward(
            [
                Rows(texts[0], [7]),
                Rows(texts[1], PROMPT[3:8], 5),
                Rows(texts[2], PROMPT[9:12], 3),
                Rows(texts[3], PROMPT[19:], 2),
                Rows(texts[4], [150]),
            ]
        )
    )
    for number in range(3):
        bits.logits(model.forward([Rows(each, [number, 11], 2) for each in texts[: 3 + number]], FEWER))
    bits.logits(model.forward([Rows(each, text(12, index), 12) for index, each in enumerate(texts)]))


def choose(model: NativeModel, bits: Bits) -> None:
    """The likeliest tokens, found in the core."""
    texts = [model.new_sequence(CAPACITY, 9) for _ in range(3)]
    bits.choices(model.choose([Rows(texts[0], PROMPT, 12), Rows(texts[1], PROMPT[2:4], 2)], 5))
    bits.choices(model.choose([Rows(each, [number + 3]) for number, each in enumerate(texts)], 0, FEWER))
    bits.choices(model.choose([Rows(texts[0], PROMPT[:5], 5)], 3, FEWER))


def draft(model: NativeModel, bits: Bits) -> None:
    """Greedy tokens in one call, of one text and of several; a row behind them shows the keys and values they left."""
    texts = [model.new_sequence(CAPACITY, 9) for _ in range(4)]
    bits.drafts([model.draft(texts[0], PROMPT[:20], 8)])
    bits.drafts([model.draft(texts[1], [5], 6, FEWER, 0.02)])
    requests = [DraftInput(each, PROMPT[i : 2 * i + 1], 2 + i, 0.01 * i) for i, each in enumerate(texts)]
    bits.drafts(model.draft_many(requests, FEWER))
    bits.logits(model.forward([Rows(each, [8]) for each in texts]))


PATTERNS: tuple[Callable[[NativeModel, Bits], None], ...] = (prompt, chunks, steps, passes, together, choose, draft)


def long_context(model: NativeModel, bits: Bits, count: int) -> None:
    """Behind thousands of positions: steps, some rows, many rows, several texts, drafts."""
    sequence = model.new_sequence(count + 100, count)
    bits.logits(model.extend(sequence, text(count), 20))
    for rows in (1, 2, 5, 16, 40):
        bits.logits(model.extend(sequence, PROMPT[:rows], rows))
        sequence.truncate(count)
    other = sequence.fork(count - 200)
    bits.logits(model.forward([Rows(sequence, [3, 4], 2), Rows(other, PROMPT[:3], 3)]))
    bits.drafts(model.draft_many([DraftInput(sequence, [9], 5), DraftInput(other, [9], 3)]))
    bits.logits(model.extend(sequence, [5]))


def fewer_threads(model: NativeModel, bits: Bits) -> None:
    """Passes of few rows by one thread of two."""
    model.use_threads(1)
    passes(model, bits)


def pair(model: NativeModel, bits: Bits, checkpoint: Path) -> None:
    """A draft that looks tokens up in the table of its target."""
    prompt(load(checkpoint, "int4", table_of=model), bits)


def patterns_of(name: str, precision: str, checkpoint: Path, setup: Setup) -> Iterator[tuple[str, Callable[..., None]]]:
    """What is run on a model, by name."""
    if name in LONG:
        yield "long context", lambda model, bits: long_context(model, bits, LONG_TEXT.get(name, 2300))
        return
    for pattern in PATTERNS:
        yield pattern.__name__, pattern
    if name in KINDS and precision in BASE:
        if setup.threads > 1:
            yield "fewer threads", fewer_threads
        if not name.endswith("mxfp4"):
            yield "pair", lambda model, bits: pair(model, bits, checkpoint)


# ---- one process: an instruction set and a setup


def load(checkpoint: Path, precision: str, table_of: NativeModel | None = None) -> NativeModel:
    """A model in one of our precisions' names ("int4-32+int8")."""
    plain, _, disk = precision.partition(" ")
    linears, _, kv = plain.partition("+")
    linears, _, group = linears.partition("-")
    request = LoadRequest(
        open_checkpoint(str(checkpoint)),
        linears,
        "native",
        cache_packed=bool(disk),
        table_of=table_of,
        group=int(group or 64),
        kv_precision=kv or None,
    )
    model = load_model(request)
    assert isinstance(model, NativeModel)
    return model


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


def has_experts(checkpoint: Path) -> bool:
    """Whether its config says so."""
    config = json.loads((checkpoint / "config.json").read_text())
    return any(config.get(field) for field in ("num_experts", "num_local_experts"))


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


# ---- checkpoints


def all_models() -> dict[str, Callable[[Path], object]]:
    """What makes each checkpoint, by its name."""
    sys.path.insert(0, str(TESTS))
    import mxfp4_files
    import quantized_files
    import tiny_models

    def mxfp4(folder: Path) -> None:
        tiny_models.save(folder, "gpt-oss")
        mxfp4_files.to_mxfp4(folder)

    made: dict[str, Callable[[Path], object]] = {MXFP4: mxfp4}
    for name in tiny_models.VARIANTS:
        made[name] = functools.partial(tiny_models.save, variant=name)
    for name, (variant, changes) in (WIDER | LONG).items():
        made[name] = functools.partial(tiny_models.save, variant=variant, **changes)
    for name, options in QUANTIZED.items():
        made[name] = functools.partial(quantized_files.save, **options)
    return made


def make_models(models: Path) -> dict[str, str]:
    """Make the checkpoints that are missing; the checksum of each one's files."""
    makers = all_models()
    for name, make in makers.items():
        if not (models / name).exists():
            half = models / f".{name}"
            shutil.rmtree(half, ignore_errors=True)
            half.mkdir(parents=True)
            make(half)
            half.rename(models / name)
    return {name: checksum_of_files(models / name) for name in sorted(makers)}


def checksum_of_files(folder: Path) -> str:
    """Names and contents."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name} {path.stat().st_size} ".encode() + path.read_bytes())
    return digest.hexdigest()[:32]


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
