"""Types of GGUF files: bits, bytes, perplexity, distance from bf16, and tokens/s, beside llama.cpp on the same files.

    ipex-launch -- python benchmarks/formats.py FILE.gguf --scratch FOLDER [--types Q8_0,Q4_K_M,…] [--llama-cpp FOLDER]
        [--text FILE] [--max-tokens 4096] [--requests 1,5,16] [--repeats 2]

FILE is written in each type that it does not have itself: by `ipex-assist quantize` where that writes it, else by
llama.cpp's llama-quantize, and what comes of it is kept in --scratch with what it scored. Its own numbers are the best
that there are: a FILE in 4 bits shows nothing of what 8 lose, but what each type adds.

Perplexity is that of `llama-perplexity -c 512`: the text (the pages in docs/, if none is given) in windows of 512
tokens, of which the second half counts. "KL" is the Kullback-Leibler divergence from FILE in bf16, nats a token, "same"
the share of tokens that both find likeliest. Tokens/s are those of passes with a row of each of so many requests, which
have 16 tokens before them, and of llama-batched-bench with as many; turns alternate, and the medians are shown.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import statistics
import subprocess
import sys
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
from ipex_assist.quantization.gguf_mix import FILE_TYPES
from ipex_assist.tokenization.tokenizer import load_tokenizer

DOCS = Path(__file__).parents[1] / "docs"
TYPES = "Q8_0,Q6_K,Q5_K_M,Q4_K_M,IQ4_XS,Q4_0,Q3_K_M,IQ3_S,Q2_K"
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


def file_of(args: argparse.Namespace, kind: str) -> Path | None:
    """The file in this type, written unless it is there; None where only llama-quantize writes it, and is not here."""
    own = opened(args.file).header.get("general.file_type")
    if kind in FILE_TYPES and own == FILE_TYPES[kind][0]:
        return Path(args.file)
    path = Path(args.scratch) / f"{args.file.stem}-{kind}.gguf"
    if path.exists():
        return path
    if kind in FILE_TYPES:
        ours = [sys.executable, "-m", "ipex_assist", "quantize", "-q", "-m", str(args.file), "-o", str(path)]
        said_by([*ours, "--type", kind])
    elif args.llama_cpp is None:
        return None
    else:
        part, threads = path.with_suffix(".part"), str(planned_pool().threads)
        said_by([str(args.llama_cpp / QUANTIZE), "--allow-requantize", str(args.file), str(part), kind, threads])
        part.rename(path)
    return path


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

    def of(self, path: Path) -> dict[str, float]:
        """A file's figures: as kept beside it, if they are of the same file, text and programs."""
        kept = Path(self._args.scratch) / f"{path.stem}.json"
        state = path.stat()
        key = [state.st_size, state.st_mtime_ns, self._tokens, str(self._args.llama_cpp)]
        if kept.exists() and (found := json.loads(kept.read_text()))["key"] == key:
            return dict(found["figures"])
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
        kept.write_text(json.dumps({"key": key, "figures": figures}))
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


def turn(path: Path, counts: list[int]) -> tuple[dict[int, float], int]:
    """Tokens/s by requests, and the bytes that the weights take in memory."""
    model, chance, found = loaded(path), random.Random(0), {}
    sequences = [model.new_sequence(CONTEXT + PASSES) for _ in range(max(counts))]
    for sequence in sequences:
        model.extend(sequence, mixture.tokens_of(model, CONTEXT, chance))
    for count in counts:
        seconds = [mixture.one_pass(model, sequences[:count], 1, chance)[0] for _ in range(PASSES + 1)]
        found[count] = count / statistics.median(seconds[1:])  # the first warms up
    return found, model.packed.nbytes


def row_of(kind: str, path: Path, quality: dict[str, float], ours: list[Any], theirs: list[Any]) -> dict[str, str]:
    """A type's line of the table. ours, theirs: tokens/s by requests, of each turn."""
    checkpoint = opened(path)
    tensors = checkpoint.header.tensors
    size = sum(stored_bytes(name, each) for name, each in tensors.items())
    weights = sum(math.prod(each.shape) for each in tensors.values())
    row = {
        "type": kind,
        "bits": f"{8 * size / weights:.2f}",
        "file GB": f"{size / 1e9:.3f}",
        "memory ÷ file": f"{ours[0][1] / size:.3f}",
        "perplexity": f"{quality['perplexity']:.3f} ± {quality['standard_error']:.2f}",
        "÷ bf16": f"{quality['perplexity'] / quality['reference']:.4f}",
        "KL": f"{quality['divergence']:.4f}",
        "same": f"{quality['same']:.1%}",
        "÷ llama.cpp's": f"{quality['perplexity'] / quality['llama_cpp']:.4f}" if "llama_cpp" in quality else "",
    }
    for count in ours[0][0]:
        speed = statistics.median(found[count] for found, _ in ours)
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
    parser.add_argument("--max-tokens", type=int, default=4096)
    parser.add_argument("--requests", type=lambda text: [int(part) for part in text.split(",")], default=[1, 5, 16])
    parser.add_argument("--repeats", type=int, default=2, help="turns of each; 0: only write and score files")
    return parser.parse_args(argv)


def run(args: argparse.Namespace) -> int:
    """Write files, score them, measure, and print a table and JSON."""
    args.scratch.mkdir(parents=True, exist_ok=True)
    found = {kind: file_of(args, kind) for kind in args.types}
    files = {kind: path for kind, path in found.items() if path is not None}
    if left_out := found.keys() - files.keys():
        print(f"left out, because --llama-cpp names no {QUANTIZE}: {', '.join(sorted(left_out))}", file=sys.stderr)
    leave_cores_to_native()
    quality = Quality(args)
    scores = {kind: quality.of(path) for kind, path in files.items()}
    del quality  # and the bf16 model with it
    ours: dict[str, list[Any]] = {kind: [] for kind in files}
    theirs: dict[str, list[Any]] = {kind: [] for kind in files}
    for _ in range(args.repeats):
        for kind, path in files.items():
            ours[kind].append(turn(path, args.requests))
            if args.llama_cpp is not None:
                theirs[kind].append(Peer(args.llama_cpp, path, CONTEXT, args.requests).turn().speeds)
    if args.repeats:
        table = [row_of(kind, path, scores[kind], ours[kind], theirs[kind]) for kind, path in files.items()]
        results = [
            {"type": kind, **scores[kind], "ours": [speeds for speeds, _ in ours[kind]], "llama_cpp": theirs[kind]}
            for kind in files
        ]
        measure.report(table, {"file": args.file.name, "tokens": args.max_tokens, "results": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(measure.exit_code(lambda: run(parse()), print))
