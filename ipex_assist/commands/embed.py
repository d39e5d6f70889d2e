"""The command `ipex-assist embed`: vectors of many texts, or how relevant texts are to a query. Torch comes late."""

from __future__ import annotations

import argparse
import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ipex_assist.commands.shared import arguments
from ipex_assist.commands.shared.relaunch import run_placed
from ipex_assist.embedding.task import AUTO, EMBED, RERANK
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.options import add_flags
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.launch import add_placement_arguments

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipex_assist.embedding.facts import EncodedText
    from ipex_assist.embedding.jobs import EmbeddingJob
    from ipex_assist.embedding.model import EmbeddingModel

JOBS_AT_ONCE = 16  # that share passes
EPILOG = """\
A text a line, or in a .jsonl file an object a line with "text", or a string. Vectors go to standard output or to the
file of -o, a JSON object a line with "index" and "embedding"; a file named .npy gets one fp32 array (texts, numbers).

With --query the texts are documents: a line for each, the most relevant first, with "index", "relevance_score" and
"document". That takes a reranker, such as Qwen/Qwen3-Reranker-0.6B or BAAI/bge-reranker-v2-m3.

  ipex-assist embed texts.txt -o vectors.npy -m Qwen/Qwen3-Embedding-0.6B
  ipex-assist embed questions.txt --prompt-name query -m Qwen/Qwen3-Embedding-0.6B
  ipex-assist embed documents.txt --query 'Who was Ada Lovelace?' --top-n 3 -m BAAI/bge-reranker-v2-m3
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist embed`."""
    parser = ArgumentParser(
        prog="ipex-assist embed",
        description="Compute vectors of texts by an embedding model, or by a reranker their relevance to a query.",
        epilog=EPILOG,
        formatter_class=arguments.Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("texts", nargs="?", default="-", metavar="FILE", help="(default: standard input)")
    parser.add_argument("-m", "--model", metavar="ID", required=True, help="hub id or folder")
    parser.add_argument("-o", "--output", metavar="FILE", help="(default: standard output)")
    parser.add_argument("--query", metavar="TEXT", help="score the texts by their relevance to this one")
    parser.add_argument("--top-n", type=int, metavar="N", help="with --query: the N most relevant (default: all)")
    parser.add_argument("--instruction", metavar="TEXT", help="with --query: what is relevant, where models take it")
    parser.add_argument("--prompt-name", metavar="NAME", help="which of the model's prompts precedes each text")
    parser.add_argument("--dimensions", type=int, metavar="N", help="the first N numbers of each vector, at length 1")
    parser.add_argument("--matryoshka", action="store_true", help="allow --dimensions whatever the model's files say")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long (default: refuse them)")
    parser.add_argument(
        "--task", choices=(EMBED, RERANK), help="what to use the model for (default: what its files say)"
    )
    names = ("precision", "kv_precision", "kv_memory", "executor", "cache_packed", "revision", "offline")
    add_flags(parser, LoadOptions, names)
    parser.add_argument("-v", "--verbose", action="store_true", help="placement, loading, libraries' own messages")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_placement_arguments(parser)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse and check the flags. Raises UsageError."""
    args = build_parser().parse_args(argv)
    for flag, value in (("--top-n", args.top_n), ("--dimensions", args.dimensions)):
        if value is not None and value < 1:
            raise UsageError(f"{flag} {value}: must be at least 1")
    if args.query is None and (args.top_n is not None or args.instruction is not None):
        raise UsageError("--top-n and --instruction go with --query")
    if args.query is not None and (args.dimensions is not None or args.prompt_name is not None):
        raise UsageError("--query gives scores: leave out --dimensions and --prompt-name, which are vectors'")
    if args.query is not None and (args.output or "").endswith(".npy"):
        raise UsageError("--query writes JSON lines: name -o other than .npy")
    if args.query is not None and args.task == EMBED:
        raise UsageError("--query goes with --task rerank")
    return args


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist embed`; returns the exit code. Raises IpexAssistError."""
    args = parse(argv)
    if args.texts != "-" and not arguments.is_input(args.texts):
        raise UsageError(f"{args.texts}: there is no such file of texts")
    return run_placed("embed", argv, args, lambda: _bytes(args), lambda: _run(args), torch_late=True)


def _load_options(args: argparse.Namespace) -> LoadOptions:
    from ipex_assist.speculative.sources.assistant_name import NONE

    return replace(LoadOptions.from_flags(args), assistant=NONE)


def _bytes(args: argparse.Namespace) -> int | None:
    from ipex_assist.commands.shared.load import memory_need

    return memory_need(_load_options(args), 1).total


def _run(args: argparse.Namespace) -> int:
    from ipex_assist.commands.shared.load_embedder import load_for_task

    texts = list(read_texts(args.texts))
    if not texts:
        raise UsageError(f"{'standard input' if args.texts == '-' else args.texts} has no texts: write one a line")
    model = load_for_task(
        *(_load_options(args), args.task or AUTO, args.threads), matryoshka=args.matryoshka, verbose=args.verbose
    )
    if model is None:
        raise UsageError(
            f"{args.model} is a model that writes text, by its files: name an embedding model or a reranker, or type "
            "--task embed if its last token's state is what you want"
        )
    _check_kind(args, model)
    encoded = _encoded(args, model, texts)
    with _opened(args.output) as file:
        if args.query is not None:
            _write_ranked(args, texts, [float(vector[0]) for _, vector in _vectors(args, model, encoded)], file)
        else:
            _write_vectors(args, model, encoded, file)
    return 0


def _check_kind(args: argparse.Namespace, model: EmbeddingModel) -> None:
    if args.query is None and model.facts.task == RERANK:
        raise UsageError(f"{args.model} is a reranker: give the query by --query")
    if args.query is not None and model.facts.task == EMBED:
        raise UsageError(f"{args.model} gives vectors, and --query asks for a reranker's scores")
    model.facts.check_length(args.dimensions)


def _encoded(args: argparse.Namespace, model: EmbeddingModel, texts: Sequence[str]) -> list[EncodedText]:
    """All texts as token ids, before the first is computed: a wrong one ends nothing half way."""
    from ipex_assist.embedding.facts import TextEncoder

    encoder, found = TextEncoder(model.tokenizer, model.facts), []
    most = model.facts.max_tokens if args.truncate else None
    prompt = model.facts.prompt(args.prompt_name)
    for number, text in enumerate(texts, 1):
        if args.query is not None:
            one = encoder.pair(args.query, text, args.instruction, most)
        else:
            one = encoder.text(text, prompt, most)
        try:
            model.check(one)
        except UsageError as error:
            advice = "" if args.truncate else "; --truncate cuts those that are too long"
            raise UsageError(f"text {number}: {error}{advice}") from None
        found.append(one)
    return found


def _vectors(
    args: argparse.Namespace, model: EmbeddingModel, texts: Sequence[EncodedText]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """(index, vector) in the order of the texts; JOBS_AT_ONCE jobs share passes."""
    from tqdm import tqdm

    from ipex_assist.embedding.jobs import in_jobs

    waiting = deque(in_jobs(texts))
    running: deque[tuple[list[int], EmbeddingJob]] = deque()
    quiet = args.quiet or not sys.stderr.isatty()
    with tqdm(total=len(texts), unit="text", disable=quiet, leave=False) as bar:
        while waiting or running:
            while waiting and len(running) < JOBS_AT_ONCE:
                indices = waiting.popleft()
                running.append((indices, model.begin([texts[index] for index in indices])))
            indices, job = running.popleft()
            yield from zip(indices, job.run(), strict=True)
            bar.update(len(indices))


def _write_vectors(args: argparse.Namespace, model: EmbeddingModel, texts: Sequence[EncodedText], file: Any) -> None:
    from ipex_assist.embedding.steps import normalized

    size, array = args.dimensions or model.facts.size, None
    if (args.output or "").endswith(".npy"):
        import numpy as np

        array = np.empty((len(texts), size), np.float32)
    for index, vector in _vectors(args, model, texts):
        shown = vector if size == len(vector) else normalized(vector[:size])
        if array is not None:
            array[index] = shown
        else:
            file.write(json.dumps({"index": index, "embedding": shown.tolist()}) + "\n")
    if array is not None:
        np.save(args.output, array)


def _write_ranked(args: argparse.Namespace, texts: Sequence[str], scores: Sequence[float], file: IO[str]) -> None:
    order = sorted(range(len(scores)), key=lambda index: -scores[index])
    for index in order[: args.top_n]:
        line = {"index": index, "relevance_score": scores[index], "document": texts[index]}
        file.write(json.dumps(line, ensure_ascii=False) + "\n")


@contextmanager
def _opened(output: str | None) -> Iterator[Any]:
    """The file of -o; an .npy file is written by numpy when all is there."""
    if output is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        if output.endswith(".npy"):
            if not Path(output).absolute().parent.is_dir():
                raise UsageError(f"-o {output}: there is no such folder")
            yield None
            return
        with open(output, "w", encoding="utf-8") as file:
            yield file
    except OSError as error:
        raise IpexAssistError(f"-o {output} cannot be written: {error.strerror or error}") from None


def read_texts(name: str) -> Iterator[str]:
    """The texts of a file, "-" for standard input. Raises UsageError with the line's number for one that is none."""
    where = "standard input" if name == "-" else name
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
        lines = data.decode("utf-8").splitlines() if name.endswith(".jsonl") else data.decode("utf-8").split("\n")
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise UsageError(f"{where} is no UTF-8 text (line {line})") from None
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r")
        if line.strip():
            yield _text_of(line, where, number) if name.endswith(".jsonl") else line


def _text_of(line: str, where: str, number: int) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}, line {number} is no JSON ({error})") from None
    text = value.get("text") if isinstance(value, dict) else value
    if not isinstance(text, str):
        raise UsageError(f'{where}, line {number} has no text: write "…" or {{"text": "…"}}')
    return text
