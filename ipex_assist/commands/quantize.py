"""The command `ipex-assist quantize`: a checkpoint with its layers in 4 bits, in GPTQ's format or in GGUF.

Torch comes late.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ipex_assist.commands.shared import arguments
from ipex_assist.commands.shared.relaunch import run_placed
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.env.memory import gib
from ipex_assist.env.options import add_flags
from ipex_assist.env.parser import ArgumentParser
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.launch import add_placement_arguments
from ipex_assist.quantization.gguf_mix import FILE_TYPES
from ipex_assist.quantization.precision import INT4_GROUP

if TYPE_CHECKING:
    from ipex_assist.checkpoints.base import Checkpoint

EPILOG = """\
A folder gets a GPTQ checkpoint, which ipex-assist, transformers (with gptqmodel) and vLLM read. The matrices of
the layers get 4 bits; embeddings, norms and the head stay as they are.

  rtn         each group's range is searched for least squared error; needs no data: minutes
  auto-round  Intel's auto-round learns the rounding on calibration text: hours, and less loss (needs the
              extra "quantize"; without it the command says how to install it)

A file whose name ends in .gguf is written for ipex-assist and llama.cpp: from a GGUF file in more bits (F16, BF16,
Q8_0), or from the folder of a Llama, Mistral, Qwen2 or Qwen3. With --calibration, a text, errors of weights count as
much as what they are multiplied with.

  ipex-assist quantize -m model-f16.gguf -o model-Q4_K_M.gguf --calibration text.txt
  ipex-assist quantize -m facebook/opt-13b -o opt-13b-int4
  ipex-assist eval -m opt-13b-int4 --against-model facebook/opt-13b       what it costs
"""


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of all flags of `ipex-assist quantize`."""
    parser = ArgumentParser(
        prog="ipex-assist quantize",
        description="Write a checkpoint with 4-bit weights, which loads without quantizing again.",
        epilog=EPILOG,
        formatter_class=arguments.Formatter,
        allow_abbrev=False,
    )
    parser.add_argument("-m", "--model", metavar="ID", required=True, help="hub id, folder or .gguf file")
    parser.add_argument("-o", "--output", metavar="PATH", required=True, help="a new folder, or a new file NAME.gguf")
    parser.add_argument(
        "--type", choices=FILE_TYPES, help="of a .gguf file: how its matrices are mixed (default: Q4_K_M)"
    )
    parser.add_argument("--bits", type=int, choices=(4,), default=4, help="of a folder (default: 4)")
    parser.add_argument(
        "--group-size", type=int, choices=(32, 64, 128), default=INT4_GROUP, help="of a folder (default: %(default)s)"
    )
    parser.add_argument("--method", choices=("rtn", "auto-round"), default="rtn", help="(default: rtn)")
    parser.add_argument(
        "--sym",
        action=argparse.BooleanOptionalAction,
        help="zero points of 8 everywhere, as vLLM's Marlin wants them (default: for auto-round, not for rtn)",
    )
    add_flags(parser, LoadOptions, ("revision", "offline"))
    parser.add_argument("-v", "--verbose", action="store_true", help="placement, libraries' own messages")
    parser.add_argument("-q", "--quiet", action="store_true", help="no progress")
    tuning = parser.add_argument_group("auto-round, and .gguf files")
    help_ = "text to learn from (default: pile-10k, from the hub; for .gguf files none)"
    tuning.add_argument("--calibration", metavar="FILE", help=help_)
    tuning.add_argument("--iters", type=int, metavar="N", help="of auto-round: steps for each layer (default: 200)")
    tuning.add_argument("--nsamples", type=int, metavar="N", help="calibration sequences (default: 128)")
    tuning.add_argument("--seqlen", type=int, metavar="N", help="tokens in each (default: 2048, of .gguf files 512)")
    add_placement_arguments(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Run `ipex-assist quantize`; returns the exit code. Raises IpexAssistError."""
    args = build_parser().parse_args(argv)
    _check(args)
    if args.sym is None:
        # Plain rounding gains much by zero points; auto-round little, and it writes zeros of 0 as 1 in this format.
        args.sym = args.method == "auto-round"
    return run_placed("quantize", argv, args, lambda: None, lambda: _run(args))


def _check(args: argparse.Namespace) -> None:
    tuned = {name: getattr(args, name) for name in ("calibration", "iters", "nsamples", "seqlen")}
    given = [f"--{name}" for name, value in tuned.items() if value is not None]
    in_file = _is_gguf(args)
    if in_file and (args.method == "auto-round" or args.iters is not None):
        raise UsageError("--method auto-round and --iters write folders; name one with -o, not a .gguf file")
    if in_file and args.calibration is None and given:
        raise UsageError(f"{', '.join(given)}: of a text, which --calibration names")
    if given and args.method != "auto-round" and not in_file:
        raise UsageError(f"{', '.join(given)}: only with --method auto-round; rtn needs no data")
    if args.type is not None and not in_file:
        raise UsageError(f"--type {args.type} is of GGUF files; -o {args.output} does not end in .gguf")
    for name in ("iters", "nsamples", "seqlen"):
        if tuned[name] is not None and tuned[name] < 1:
            raise UsageError(f"--{name} {tuned[name]}: must be at least 1")
    if args.calibration is not None and not arguments.is_input(args.calibration):
        raise UsageError(f"--calibration {args.calibration}: there is no such file")
    output = Path(args.output)
    if output.exists() and (in_file or not output.is_dir() or any(output.iterdir())):
        kind = "file" if in_file else "folder"
        raise UsageError(f"-o {output}: exists already{'' if in_file else ', and is not empty'}; name a new {kind}")


def _is_gguf(args: argparse.Namespace) -> bool:
    return str(args.output).endswith(".gguf")


def _run(args: argparse.Namespace) -> int:
    from ipex_assist.checkpoints.mxfp4 import Mxfp4Checkpoint
    from ipex_assist.checkpoints.open import open_checkpoint
    from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
    from ipex_assist.models import find

    load = LoadOptions.from_flags(args)
    checkpoint = open_checkpoint(args.model, revision=load.revision, offline=load.offline)
    if isinstance(checkpoint, (QuantizedCheckpoint, Mxfp4Checkpoint)):
        raise IpexAssistError(f"{checkpoint.source} is quantized already: take the original checkpoint")
    if reason := checkpoint.why_not_ours():
        raise IpexAssistError(f"{checkpoint.source} cannot be quantized: {reason}")
    architecture = find(checkpoint.architecture)
    assert architecture is not None
    output = Path(args.output)
    if _is_gguf(args):
        return _run_gguf(args, checkpoint, output)
    if args.method == "auto-round":
        from ipex_assist.commands.auto_round import ITERS, LENGTH, SAMPLES, Tuning, quantize_checkpoint

        tuning = Tuning(
            args.bits,
            args.group_size,
            args.sym,
            Path(args.calibration) if args.calibration is not None else None,
            args.iters or ITERS,
            args.nsamples or SAMPLES,
            args.seqlen or LENGTH,
        )
        quantize_checkpoint(checkpoint, output, tuning)
        print(f"ipex-assist: {output} written by auto-round", file=sys.stderr)
        return 0
    from ipex_assist.commands.quantized_writer import write_rtn

    done = write_rtn(
        checkpoint, architecture, output, args.group_size, sym=args.sym, progress=sys.stderr.isatty() and not args.quiet
    )
    error = math.sqrt(done.squared_error / done.squared_norm) if done.squared_norm else 0.0
    kind = f"groups of {args.group_size}{', symmetric' if args.sym else ''}"
    print(
        f"ipex-assist: {output}: {done.matrices} matrices in 4 bits, {kind}; {gib(done.bytes, 2)}; "
        f"weights are off by {error:.1%} (root mean square)",
        file=sys.stderr,
    )
    return 0


def _run_gguf(args: argparse.Namespace, checkpoint: Checkpoint, output: Path) -> int:
    from ipex_assist.commands.gguf_quantizer import LENGTH, SAMPLES, record_importance, source_of, write_gguf
    from ipex_assist.executors.select_executor import compute_threads

    file_type, importance, source = args.type or "Q4_K_M", None, source_of(checkpoint)
    if args.calibration is not None:
        text, samples, length = Path(args.calibration), args.nsamples or SAMPLES, args.seqlen or LENGTH
        importance = record_importance(checkpoint, source, text, samples, length)
    shown = sys.stderr.isatty() and not args.quiet
    done = write_gguf(source, output, file_type, importance, threads=compute_threads(), progress=shown)
    error = math.sqrt(done.squared_error / done.squared_norm) if done.squared_norm else 0.0
    print(
        f"ipex-assist: {output}: {done.matrices} matrices in {file_type}; {gib(done.bytes, 2)}; "
        f"weights are off by {error:.1%} (root mean square)",
        file=sys.stderr,
    )
    return 0
