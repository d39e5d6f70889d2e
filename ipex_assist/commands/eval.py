"""The command `ipex-assist eval`: what a model makes of a text, and what a precision costs it. Torch comes late."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ipex_assist.checkpoints.short_name import short_name
from ipex_assist.commands.shared import arguments
from ipex_assist.commands.shared.arguments import is_input, read_text
from ipex_assist.commands.shared.relaunch import run_placed
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.options import add_flags
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.launch import add_placement_arguments
from ipex_assist.quantization.precision import PRECISIONS

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint
    from ipex_assist.checkpoints.open import OpenCheckpoints
    from ipex_assist.commands.perplexity import ModelComparison, Score, Window
    from ipex_assist.commands.shared.memory_need import MemoryNeed
    from ipex_assist.executors.interface import Model

TEXT = Path(__file__).parents[1] / "data" / "evaluation.txt"
WINDOW = 1024
EPILOG = """\
The text is one sequence of tokens, as the tokenizer gives it, with its special tokens. Windows of --window tokens pass
over it in steps of --stride. Each token but the first is scored once, with at least window - stride tokens before it
(except at the beginning of the text). Perplexity is exp of their mean negative log likelihood, with its standard error.

--against compares with the same model in another precision, --against-model with another checkpoint of the same
vocabulary. Both see the same text before each token. The report has the share of positions at which both find the same
token likeliest (greedy tokens that stay the same), and the Kullback-Leibler divergence of their distributions.
--kv-precision applies to the model alone, not to the one that it is compared with.

  ipex-assist eval -m facebook/opt-13b --precision int4 --against bf16
  ipex-assist eval -m facebook/opt-13b --precision int8 --kv-precision int8 --against int8
  ipex-assist eval -m opt-13b-gptq --against-model facebook/opt-13b --text wiki.test.raw
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist eval`."""
    parser = ArgumentParser(
        prog="ipex-assist eval",
        description="Perplexity of a text, and how far a precision or a quantized checkpoint agrees with another.",
        epilog=EPILOG,
        formatter_class=arguments.Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("-m", "--model", metavar="ID", required=True, help="hub id, folder or .gguf file")
    parser.add_argument("--text", metavar="FILE", help="UTF-8 text (default: a short one of our own)")
    add_flags(parser, LoadOptions, ("precision", "kv_precision", "executor", "revision", "offline", "lora"))
    parser.add_argument("--against", choices=PRECISIONS, metavar="PRECISION", help="compare with this precision")
    parser.add_argument("--against-model", metavar="ID", help="compare with this model (at --against, default: bf16)")
    parser.add_argument("--window", type=int, metavar="N", help=f"tokens (default: {WINDOW}, or the model's context)")
    parser.add_argument("--stride", type=int, metavar="N", help="(default: half a window)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="only the first N tokens of the text")
    parser.add_argument("--json", action="store_true", help="one object on one line")
    parser.add_argument("-v", "--verbose", action="store_true", help="placement, loading, libraries' own messages")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    add_placement_arguments(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist eval`; returns the exit code. Raises IpexAssistError."""
    args = build_parser().parse_args(argv)
    for flag, value, least in (
        ("window", args.window, 2),
        ("stride", args.stride, 1),
        ("max-tokens", args.max_tokens, 2),
    ):
        if value is not None and value < least:
            raise UsageError(f"--{flag} {value}: must be at least {least}")
    if args.text is not None and not is_input(args.text):
        raise UsageError(f"--text {args.text}: there is no such file")
    return run_placed("eval", argv, args, lambda: _bytes(args), lambda: _run(args))


def _bytes(args: argparse.Namespace, checkpoints: OpenCheckpoints | None = None) -> int | None:
    """Memory of the model, and of what it is compared with."""
    folders = LoadOptions.from_flags(args).adapters.values()
    needs = [_need(args, args.model, args.precision, args.revision, checkpoints, args.kv_precision, folders).total]
    if args.against or args.against_model:
        needs.append(_reference_need(args, checkpoints))
    known = [need for need in needs if need is not None]
    return sum(known) if len(known) == len(needs) else None


def _reference_need(args: argparse.Namespace, checkpoints: OpenCheckpoints | None) -> int | None:
    from ipex_assist.commands.shared.memory_need import RUNTIME_BYTES

    source = args.against_model or args.model
    revision = None if args.against_model else args.revision
    total = _need(args, source, args.against or "bf16", revision, checkpoints).total
    return None if total is None else total - RUNTIME_BYTES


def _need(
    args: argparse.Namespace,
    source: str,
    precision: str | None,
    revision: str | None,
    checkpoints: OpenCheckpoints | None,
    kv_precision: str | None = None,
    adapters: Collection[str] = (),
) -> MemoryNeed:
    from ipex_assist.commands.shared.memory_need import estimate_need, with_adapters
    from ipex_assist.commands.shared.native_runs import runs_native

    native = runs_native(LoadOptions.from_flags(args))
    plan: dict[str, Any] = {"native": native, "checkpoints": checkpoints, "kv_precision": kv_precision}
    wanted = WINDOW // 2  # all logits of a window, of which nobody makes others
    need = estimate_need(source, None, precision, None, 1, revision, lengths=(WINDOW,), wanted=wanted, **plan)
    return with_adapters(need, source, adapters, precision, revision, checkpoints=checkpoints, native=native)


def _run(args: argparse.Namespace) -> int:
    from ipex_assist.checkpoints.open import OpenCheckpoints
    from ipex_assist.commands import perplexity
    from ipex_assist.commands.shared.messages import quiet_stderr
    from ipex_assist.executors.adapters import AdapterChoice
    from ipex_assist.executors.select_executor import resolve_executor
    from ipex_assist.tokenization.tokenizer import checked_ids, load_tokenizer

    load = LoadOptions.from_flags(args)
    if len(load.adapters) > 1:
        raise UsageError(f"--lora: {len(load.adapters)} adapters, and a text is scored with one: give one")
    executor = resolve_executor(load.executor, load.precision, args.against)
    checkpoints = OpenCheckpoints()
    _check_memory(args, checkpoints)
    if executor == "ipex":
        with quiet_stderr(not args.verbose):
            import intel_extension_for_pytorch  # noqa: F401
    checkpoint = checkpoints.open(args.model, revision=load.revision, offline=load.offline)
    other = checkpoints.open(args.against_model, offline=load.offline) if args.against_model else checkpoint
    compared = args.against is not None or args.against_model is not None
    _refuse_unknown(checkpoint, other)
    tokenizer = load_tokenizer(checkpoint)
    tokens = _tokens(tokenizer, Path(args.text) if args.text else TEXT, args.max_tokens)
    if args.against_model:
        _check_vocabulary(checkpoint, tokenizer, other, tokens)
    model, precision = _load(checkpoint, load.precision, executor, load.kv_precision, load.adapters)
    adapter = AdapterChoice(next(iter(load.adapters))) if load.adapters else None
    reference, against = _load(other, args.against or "bf16", executor) if compared else (None, None)
    for each, source in ((model, checkpoint.source), (reference, other.source)):
        if each is not None:
            checked_ids(tokens, each.spec.lm_head_rows, tokenizer, source)
    length, stride = _window(args, model, reference)
    parts = perplexity.windows(len(tokens), length, stride)
    started = time.perf_counter()
    facts: dict[str, Any] = {
        "model": checkpoint.source,
        "precision": precision,
        "kv_precision": model.kv_precision,
        "lora": next(iter(load.adapters.values()), None),
        "executor": executor,
        "text": args.text or TEXT.name,
        "window": length,
        "stride": stride,
    }
    with _progress(len(tokens), shown=not args.quiet and sys.stderr.isatty()) as progress:
        if reference is None:
            score = perplexity.perplexity(model, tokens, parts, progress, adapter)
            facts |= _of(score)
        else:
            result = perplexity.compare(model, reference, tokens, parts, progress, adapter)
            facts |= {**_of(result.model), "against": _against(other, against, result)}
    facts["seconds"] = round(time.perf_counter() - started, 3)
    print(json.dumps(facts, ensure_ascii=False) if args.json else "\n".join(_lines(facts)), flush=True)
    return 0


@contextlib.contextmanager
def _progress(tokens: int, *, shown: bool) -> Iterator[Callable[[Window], None]]:
    """A bar that goes on with each window; it is gone afterwards."""
    from tqdm import tqdm

    with tqdm(total=tokens, desc="scoring", unit=" tokens", leave=False, disable=not shown) as bar:

        def progress(window: Window) -> None:
            bar.update(window.end - bar.n)

        yield progress


def _check_memory(args: argparse.Namespace, checkpoints: OpenCheckpoints) -> None:
    from ipex_assist.env.memory import gib, read_memory

    need, available = _bytes(args, checkpoints), read_memory().available
    if need is not None and available and need > available:
        both = " for both models" if args.against or args.against_model else ""
        raise IpexAssistError(
            f"too little memory: {gib(need)} are needed{both} and {gib(available)} are available. "
            "Use a smaller --precision or model"
        )


def _refuse_unknown(*checkpoints: Checkpoint) -> None:
    for checkpoint in checkpoints:
        if reason := checkpoint.why_not_ours():
            raise IpexAssistError(f"{checkpoint.source} cannot be evaluated: {reason}")


def _check_vocabulary(checkpoint: Checkpoint, tokenizer: Any, other: Checkpoint, tokens: list[int]) -> None:
    """Both models must know every token of the text as the same; UsageError otherwise."""
    from ipex_assist.tokenization.tokenizer import load_tokenizer
    from ipex_assist.tokenization.vocabulary import share_vocabulary

    shared = share_vocabulary(
        tokenizer,
        load_tokenizer(other),
        checkpoint.decoder_spec().vocab_size,
        other.decoder_spec().vocab_size,
        names=("model", "other model"),
        advice="Both read the same token ids: give --against-model a checkpoint of the same family.",
    )
    if unknown := sorted(shared.unknown.intersection(tokens)):
        raise UsageError(
            f"{other.source} has no token for {tokenizer.convert_ids_to_tokens(unknown[0])!r} (id {unknown[0]}), which "
            "is in the text: give --text a file without it"
        )


def _load(
    checkpoint: Checkpoint,
    precision: str | None,
    executor: str,
    kv_precision: str | None = None,
    adapters: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Model, str]:
    from ipex_assist.commands.shared.load import leave_cores_to_native
    from ipex_assist.executors.load import load_model
    from ipex_assist.executors.load_request import LoadRequest
    from ipex_assist.executors.select_executor import stored_precision
    from ipex_assist.generation.loading import add_adapters

    precision = precision or stored_precision(checkpoint, executor) or "bf16"
    request = LoadRequest(checkpoint, precision, executor, exact=False, kv_precision=kv_precision)
    model = load_model(request)
    add_adapters(adapters, executor, request, model)
    leave_cores_to_native()
    return model, precision


def _tokens(tokenizer: Any, path: Path, most: int | None) -> list[int]:
    tokens = list(tokenizer(read_text(path))["input_ids"])[:most]
    if len(tokens) < 2:
        raise UsageError(f"--text {path} has {len(tokens)} tokens; at least 2 are needed")
    return tokens


def _window(args: argparse.Namespace, *models: Model | None) -> tuple[int, int]:
    context = min(model.spec.context_length for model in models if model is not None)
    length = args.window or min(WINDOW, context)
    if length > context:
        raise UsageError(f"--window {length}: the model's context has {context} tokens")
    stride = args.stride or max(1, length // 2)
    if stride >= length:  # the first token of a window is read, not predicted
        raise UsageError(f"--stride {stride}: must be less than the window, {length}, or tokens would be left out")
    return length, stride


def _of(score: Score) -> dict[str, Any]:
    return {
        "tokens": score.tokens,
        "perplexity": score.perplexity,
        "standard_error": score.standard_error,
    }


def _against(other: Checkpoint, precision: str | None, result: ModelComparison) -> dict[str, Any]:
    agreement = result.agreement
    return {
        "model": other.source,
        "precision": precision,
        **_of(result.reference),
        "perplexity_ratio": math.exp((result.model.loss - result.reference.loss) / result.model.tokens),
        "same_greedy_tokens": agreement.share,
        "mean_kl_divergence": agreement.mean_divergence,
        "largest_kl_divergence": agreement.largest,
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    """Return the figures as lines of text for people."""
    stored = " with int8 keys and values" if facts["kv_precision"] == "int8" else ""
    stored += f" and the adapter {short_name(facts['lora'])}" if facts["lora"] else ""
    lines = [
        f"{short_name(facts['model'])} {facts['precision']}{stored}: perplexity {facts['perplexity']:.4f} "
        f"± {facts['standard_error']:.4f} "
        f"({facts['tokens']} tokens of {facts['text']}, windows of {facts['window']} every {facts['stride']}; "
        f"{facts['seconds']:.1f} s)"
    ]
    if "against" in facts:
        other = facts["against"]
        lines += [
            f"{short_name(other['model'])} {other['precision']}: perplexity {other['perplexity']:.4f} "
            f"± {other['standard_error']:.4f}",
            f"perplexity {other['perplexity_ratio'] - 1:+.2%}, same greedy tokens {other['same_greedy_tokens']:.2%}, "
            f"KL divergence {other['mean_kl_divergence']:.5f} nats a token "
            f"(largest {other['largest_kl_divergence']:.3f})",
        ]
    return lines
