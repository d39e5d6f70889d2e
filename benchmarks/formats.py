"""Types of GGUF files: bits, bytes, perplexity, distance from bf16, and tokens/s, beside llama.cpp on the same files.

    ipex-launch -- python benchmarks/formats.py FILE.gguf --scratch FOLDER [--types Q8_0,Q4_K_M,…] [--llama-cpp FOLDER]
        [--text FILE] [--max-tokens 2048] [--requests 1,5,16] [--repeats 2] [--keep-files]

FILE is written in each type that it does not have itself: by `ipex-assist quantize` where that writes it, else by
llama.cpp's llama-quantize. Its own numbers are the best that there are: a FILE in 4 bits shows nothing of what 8 lose,
but what each type adds. One type is done after the other, and what comes of each is kept in --scratch: the file until
it is done, its scores and its speeds, each as soon as it is there, so that the same command goes on where one was
interrupted. Speeds are measured again where the core, the requests or the repeats are others.

Perplexity is that of `llama-perplexity -c 512`: the text (the pages in docs/, if none is given) in windows of 512
tokens, of which the second half counts. "KL" is the Kullback-Leibler divergence from FILE in bf16, nats a token, "same"
the share of tokens that both find likeliest. Tokens/s are those of passes with a row of each of so many requests, which
have 16 tokens before them, and of llama-batched-bench with as many; turns of a file alternate, and the medians are
shown.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import measure
import mixture
from mixture_llama import Peer

from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.gguf_file import stored_bytes
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.perplexity import compare, halves
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.loading import planned_pool
from ipex_assist.native.library import PATH as CORE
from ipex_assist.quantization.gguf_mix import FILE_TYPES
from ipex_assist.tokenization.tokenizer import load_tokenizer

DOCS = Path(__file__).parents[1] / "docs"
TYPES = "Q8_0,Q6_K,Q5_K_M,Q4_K_M,IQ4_XS,IQ4_NL,Q4_1,Q4_0,Q3_K_M,IQ3_S,IQ3_XXS,Q2_K"
WINDOW, CONTEXT, PASSES = 512, 16, 16
QUANTIZE, PERPLEXITY = "llama-quantize", "llama-perplexity"


def said_by(argv: list[str]) -> str:
    """What a program printed. Raises IpexAssistError with the last of it where it fails."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise IpexAssistError(f"{Path(argv[0]).name} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout + done.stderr


def opened(path: Path) -> GgufCheckpoint:
    """A GGUF file. Raises UsageError for anything else."""
    checkpoint = open_checkpoint(str(path), offline=True)
    if not isinstance(checkpoint, GgufCheckpoint):
        raise UsageError(f"{path}: a .gguf file is needed")
    return checkpoint


@contextlib.contextmanager
def taking(what: str) -> Iterator[None]:
    """Say afterwards how long something took."""
    started = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)


def written(args: argparse.Namespace, kind: str) -> Path:
    """Where FILE in this type is."""
    return Path(args.scratch) / f"{args.file.stem}-{kind}.gguf"


def file_of(args: argparse.Namespace, kind: str) -> Path | None:
    """The file in this type, written unless it is there; None where only llama-quantize writes it, and is not here."""
    own = opened(args.file).header.get("general.file_type")
    if kind in FILE_TYPES and own == FILE_TYPES[kind][0]:
        return Path(args.file)
    path = written(args, kind)
    if path.exists():
        return path
    part = path.with_suffix(".part.gguf")
    if kind in FILE_TYPES:
        ours = [sys.executable, "-m", "ipex_assist", "quantize", "-q", "-m", str(args.file), "-o", str(part)]
        argv = [*ours, "--type", kind]
    elif args.llama_cpp is None:
        return None
    else:
        source, threads = str(args.file), str(planned_pool().threads)
        argv = [str(args.llama_cpp / QUANTIZE), "--allow-requantize", source, str(part), kind, threads]
    part.unlink(missing_ok=True)
    with taking(f"{kind}: file"):
        said_by(argv)
    part.rename(path)
    return path


class Kept:
    """What is known of FILE in a type: parts of a JSON in --scratch, each good as long as its key is the same."""

    def __init__(self, scratch: Path, file: Path, kind: str) -> None:
        self._file, state = scratch / f"{file.stem}-{kind}.json", file.stat()
        self._of = [state.st_size, state.st_mtime_ns]

    def get(self, part: str, key: Any) -> Any:
        """A part, None where it is not there or of another file or key."""
        found = json.loads(self._file.read_text()) if self._file.exists() else {}
        return found[part]["found"] if part in found and found[part]["key"] == [*self._of, key] else None

    def put(self, part: str, key: Any, found: Any) -> Any:
        """Keep a part, and return it as `get` will."""
        known = json.loads(self._file.read_text()) if self._file.exists() else {}
        text = json.dumps({**known, part: {"key": [*self._of, key], "found": found}})
        aside = self._file.with_suffix(".part")
        aside.write_text(text)
        aside.replace(self._file)
        return json.loads(text)[part]["found"]


class Quality:
    """What a text scores in files, beside the first one in bf16, which is loaded when it is needed."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._reference = args, None
        self._text = Path(args.scratch) / "text.txt"
        pages = [Path(args.text)] if args.text else sorted(DOCS.glob("*.md"))
        self._text.write_text("\n".join(page.read_text(encoding="utf-8") for page in pages), encoding="utf-8")
        tokenizer = load_tokenizer(opened(args.file))
        self._tokens = tokenizer(self._text.read_text(encoding="utf-8"))["input_ids"][: args.max_tokens]
        if len(self._tokens) < WINDOW:
            raise UsageError(f"--text: {len(self._tokens)} tokens, fewer than the {WINDOW} of a window")

    def key(self) -> list[Any]:
        """What scores depend on beside the file."""
        return [self._tokens, str(self._args.llama_cpp)]

    def of(self, path: Path) -> dict[str, float]:
        """A file's figures."""
        if self._reference is None:
            self._reference = load_model(LoadRequest(opened(self._args.file), "bf16", "native"))
        result = compare(loaded(path), self._reference, self._tokens, halves(len(self._tokens), WINDOW))
        figures = {
            "perplexity": result.model.perplexity,
            "standard_error": result.model.standard_error,
            "reference": result.reference.perplexity,
            "divergence": result.agreement.mean_divergence,
            "same": result.agreement.share,
        }
        if self._args.llama_cpp is not None:
            figures["llama_cpp"] = self._theirs(path)
        tensors = opened(path).header.tensors
        figures["bytes"] = sum(stored_bytes(name, each) for name, each in tensors.items())
        figures["weights"] = sum(math.prod(each.shape) for each in tensors.values())
        return figures

    def _theirs(self, path: Path) -> float:
        threads, chunks = str(planned_pool().threads), str(len(self._tokens) // WINDOW)
        argv = [str(self._args.llama_cpp / PERPLEXITY), "-m", str(path), "-f", str(self._text), "-c", str(WINDOW)]
        said = said_by([*argv, "--chunks", chunks, "-t", threads, "-tb", threads])
        if (found := re.search(r"Final estimate: PPL = ([\d.]+)", said)) is None:
            raise IpexAssistError(f"{PERPLEXITY} printed no final estimate: {said.strip()[-300:]}")
        return float(found[1])


def loaded(path: Path) -> Any:
    """The file on our native core, as it is stored."""
    checkpoint = opened(path)
    return load_model(LoadRequest(checkpoint, checkpoint.stored_precision or "bf16", "native"))


def turn(path: Path, counts: list[int]) -> dict[str, Any]:
    """Tokens/s by requests, and the bytes that the weights take in memory."""
    model, chance, found = loaded(path), random.Random(0), {}
    sequences = [model.new_sequence(CONTEXT + PASSES) for _ in range(max(counts))]
    for sequence in sequences:
        model.extend(sequence, mixture.tokens_of(model, CONTEXT, chance))
    for count in counts:
        seconds = [mixture.one_pass(model, sequences[:count], 1, chance)[0] for _ in range(PASSES + 1)]
        found[count] = count / statistics.median(seconds[1:])  # the first warms up
    return {"speeds": found, "bytes": model.packed.nbytes}


def turns_key(args: argparse.Namespace) -> list[Any]:
    """What speeds depend on beside the file."""
    return [hashlib.sha256(CORE.read_bytes()).hexdigest(), str(args.llama_cpp), args.requests, args.repeats]


def turns(args: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Turns of us and of llama.cpp on a file, when they were and at which commit."""
    ours, theirs = [], []
    for _ in range(args.repeats):
        ours.append(turn(path, args.requests))
        if args.llama_cpp is not None:
            theirs.append(dict(Peer(args.llama_cpp, path, CONTEXT, args.requests).turn().speeds))
    facts = {"time": measure.now(), "commit": measure.machine()["commit"]}
    return {**facts, "ours": ours, "llama_cpp": theirs}


def row_of(kind: str, quality: dict[str, float], speeds: dict[str, Any]) -> dict[str, str]:
    """A type's line of the table. speeds: those of each turn, as `turns` returns them."""
    ours, theirs = speeds["ours"], speeds["llama_cpp"]
    size = quality["bytes"]
    row = {
        "type": kind,
        "bits": f"{8 * size / quality['weights']:.2f}",
        "file GB": f"{size / 1e9:.3f}",
        "memory ÷ file": f"{ours[0]['bytes'] / size:.3f}",
        "perplexity": f"{quality['perplexity']:.3f} ± {quality['standard_error']:.2f}",
        "÷ bf16": f"{quality['perplexity'] / quality['reference']:.4f}",
        "KL": f"{quality['divergence']:.4f}",
        "same": f"{quality['same']:.1%}",
        "÷ llama.cpp's": f"{quality['perplexity'] / quality['llama_cpp']:.4f}" if "llama_cpp" in quality else "",
    }
    for count in ours[0]["speeds"]:
        speed = statistics.median(each["speeds"][count] for each in ours)
        row[f"tokens/s, {count}"] = f"{speed:.1f}"
        peer = statistics.median(each[count] for each in theirs) if theirs else 0
        row[f"÷ llama.cpp, {count}"] = f"{speed / peer:.2f}" if theirs else ""
    return row


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--scratch", type=Path, required=True, help="a folder, where files and scores are kept")
    parser.add_argument("--types", type=lambda text: text.split(","), default=TYPES.split(","))
    parser.add_argument("--llama-cpp", type=Path, metavar="FOLDER", help="where llama.cpp's programs are")
    parser.add_argument("--text", metavar="FILE")
    parser.add_argument("--max-tokens", type=int, default=2048)
    parser.add_argument("--requests", type=lambda text: [int(part) for part in text.split(",")], default=[1, 5, 16])
    parser.add_argument("--repeats", type=int, default=2, help="turns of each; 0: only write and score files")
    parser.add_argument("--keep-files", action="store_true", help="also those of types that are done")
    return parser.parse_args(argv)


def one_type(args: argparse.Namespace, kind: str, quality: Quality) -> tuple[dict[str, str], dict[str, Any]] | None:
    """A type's line of the table, and its scores and turns; None where the file cannot be written here."""
    kept = Kept(args.scratch, args.file, kind)

    def part(name: str, key: list[Any], make: Callable[[Path], dict[str, Any]]) -> dict[str, Any] | None:
        if (found := kept.get(name, key)) is not None:
            return dict(found)
        if (path := file_of(args, kind)) is None:
            print(f"{kind}: left out, because --llama-cpp names no {QUANTIZE}", file=sys.stderr)
            return None
        with taking(f"{kind}: {name}"):
            return dict(kept.put(name, key, make(path)))

    scores = part("scores", quality.key(), quality.of)
    speeds = part("turns", turns_key(args), lambda path: turns(args, path)) if scores and args.repeats else None
    if scores is None:
        return None
    if speeds and not args.keep_files:
        written(args, kind).unlink(missing_ok=True)
    return (row_of(kind, scores, speeds) if speeds else {}), {"type": kind, **scores, **(speeds or {})}


def run(args: argparse.Namespace) -> int:
    """For each type write a file, score it and measure it, unless that is kept; then print a table and JSON."""
    args.scratch.mkdir(parents=True, exist_ok=True)
    leave_cores_to_native()
    quality = Quality(args)
    done = [found for kind in args.types if (found := one_type(args, kind, quality)) is not None]
    if args.repeats and done:
        results = [result for _, result in done]
        measure.report(
            [row for row, _ in done], {"file": args.file.name, "tokens": args.max_tokens, "results": results}
        )
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the program that runs, too
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
