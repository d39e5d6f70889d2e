"""Finds the first operation of the native core whose result differs from the torch executor's.

    python -m ipex_assist.executors.compare MODEL [-p TEXT | --tokens N] [--precision P] [--reference MODEL]

A prompt goes through the core twice, once as a prompt and once with its last rows as a decode step, and through the
torch executor in fp32; every buffer that both show (native/watch.py, TorchModel.see) is compared, in the order in which
the core computes them. transformers, where it can read the model, says which of the two is wrong. The exit code is 1
where a buffer differs. For developers: docs/internals.md has an example.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError
from ipex_assist.env.runner import run_command
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.torch.model import TorchModel
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.sizes import PASS_ROWS
from ipex_assist.native.watch import OperationOutput, watched

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

LANES = 16  # kernels.h: parts of a buffer begin at a multiple of it
STEP_ROWS = 4  # of a prompt, that pass as a decode step
# More than rounding makes, as a share of a buffer's largest value.
TOLERANCES = {"fp32": 1e-4, "bf16": 0.06, "fp8": 0.3, "int8": 0.15, "int4": 0.8, "mxfp4": 0.8}
TEXT = "The quick brown fox jumps over the lazy dog, and everybody who has seen it once wants to see it again."

# By layer, operation and buffer: the first column, and (rows, columns).
Shown = dict[tuple[int, str, str], tuple[int, "NDArray[np.float32]"]]


@dataclass(frozen=True)
class Difference:
    """Of one buffer. size: the largest difference ÷ the reference's largest value; at: its row and column."""

    output: OperationOutput
    size: float
    at: tuple[int, int]
    core: float
    reference: float

    def __str__(self) -> str:
        row, column = self.at
        return (
            f"layer {self.output.layer}, operation {self.output.operation}: {self.output.buffer} differs by "
            f"{self.size:.2g} of its largest value (row {row}, column {column}: {self.core:.6g} in the core, "
            f"{self.reference:.6g} in the reference)"
        )


def reference_buffers(model: TorchModel, tokens: Sequence[int]) -> Shown:
    """What the torch executor's operations give for a prompt."""
    shown: Shown = {}

    def see(layer: int, operation: str, buffer: str, *parts: torch.Tensor, column: int = 0) -> None:
        known = [part[: len(tokens)].float().numpy() for part in parts]  # a short prompt passes in padded steps
        lanes = [np.pad(part, ((0, 0), (0, -part.shape[1] % LANES))) for part in known]
        shown[layer, operation, buffer] = -(-column // LANES) * LANES, np.concatenate(lanes, 1)

    unwatched, model.see = model.see, see
    try:
        model.forward([Rows(model.new_sequence(len(tokens)), tokens, len(tokens))])
    finally:
        model.see = unwatched
    return shown


def core_buffers(model: NativeModel, tokens: Sequence[int], step: int) -> list[OperationOutput]:
    """What the core's operations give for the last `step` rows of a prompt, in one pass after one of the others."""
    outputs, first = list[OperationOutput](), len(tokens) - step
    sequence = model.new_sequence(len(tokens), len(tokens))
    if first:
        model.forward([Rows(sequence, tokens[:first], 0)])
    with watched(model.packed, outputs.append):
        model.forward([Rows(sequence, tokens[first:], step)])
    # Of one operation, what is added to the residual stream was made last.
    groups = itertools.groupby(outputs, key=lambda each: (each.layer, each.operation))
    return [each for _, group in groups for each in sorted(group, key=lambda each: each.buffer == "delta")]


def differences(outputs: Iterable[OperationOutput], expected: Shown, first: int) -> Iterator[Difference]:
    """Of each buffer that both have, in the core's order. first: position of the batch's first row."""
    for output in outputs:
        start, reference = expected.get((output.layer, output.operation, output.buffer), (0, None))
        known = [index for index, row in enumerate(output.batch_rows) if row >= 0]
        if reference is None or not known:
            continue
        rows = [first + output.batch_rows[index] for index in known]
        columns = min(reference.shape[1], output.values.shape[1] - start)  # inputs of a linear are padded
        found, right = output.values[known][:, start : start + columns], reference[rows][:, :columns]
        scale = float(np.abs(right).max()) or 1.0
        # A number that is not finite on one side alone differs more than any other.
        size = np.where(np.isfinite(found) == np.isfinite(right), np.nan_to_num(np.abs(found - right)), np.inf) / scale
        row, column = (int(i) for i in np.unravel_index(int(size.argmax()), size.shape))
        place = float(found[row, column]), float(right[row, column])
        yield Difference(output, float(size[row, column]), (rows[row], start + column), *place)


def first_difference(found: Sequence[Difference], tolerance: float) -> Difference | None:
    """The first that is larger than rounding makes."""
    return next((each for each in found if each.size > tolerance), None)


def by_layer(found: Sequence[Difference]) -> Iterator[str]:
    """A line for each layer: its largest difference and where that is."""
    for layer in sorted({each.output.layer for each in found}):
        largest = max((each for each in found if each.output.layer == layer), key=lambda each: each.size)
        yield f"  {layer:4d}  {largest.size:8.2g}  {largest.output.operation}: {largest.output.buffer}"


def transformers_verdict(checkpoint: Checkpoint, spec: DecoderSpec, tokens: Sequence[int], expected: Shown) -> str:
    """How far the torch executor is from transformers: the first layer whose input differs, or that none does."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        model = AutoModelForCausalLM.from_pretrained(checkpoint.source, dtype=torch.float32, local_files_only=True)
        with torch.inference_mode():
            states = model.eval()(torch.tensor([list(tokens)]), output_hidden_states=True, use_cache=False)
    except Exception as error:  # whatever hinders it
        return f"transformers does not run this checkpoint: {type(error).__name__}: {error}".splitlines()[0]

    def far(layer: int, operation: str, buffer: str, theirs: torch.Tensor) -> float:
        right = theirs[0].float().numpy()
        _, ours = expected.get((layer, operation, buffer), (0, right))
        return float(np.abs(ours[:, : right.shape[1]] - right).max() / (np.abs(right).max() or 1))

    size, layers = far(spec.num_hidden_layers, "head", "logits", states.logits), spec.num_hidden_layers
    if size <= TOLERANCES["fp32"]:
        return "transformers agrees with the reference"
    for index, state in enumerate((states.hidden_states or ())[:layers]):
        if (wrong := far(index, "prepare_attention", "residual stream", state)) > TOLERANCES["fp32"]:
            return f"transformers differs from the reference: first in the input of layer {index}, by {wrong:.2g}"
    return f"transformers differs from the reference: in the logits, by {size:.2g}"


def prompt_tokens(checkpoint: Checkpoint, spec: DecoderSpec, args: argparse.Namespace) -> list[int]:
    """The prompt's tokens, or as many of the vocabulary as were asked for."""
    if args.tokens is not None:
        random = np.random.default_rng(0)
        return [int(token) for token in random.integers(spec.vocab_size, size=args.tokens)]
    from ipex_assist.tokenization.tokenizer import load_tokenizer

    made: list[int] = load_tokenizer(checkpoint)(args.prompt)["input_ids"]
    return made[:PASS_ROWS]


def build_parser() -> argparse.ArgumentParser:
    """The command's options."""
    description = (__doc__ or "").split("\n")[0]
    parser = argparse.ArgumentParser("python -m ipex_assist.executors.compare", description=description)
    parser.add_argument("model", metavar="MODEL")
    parser.add_argument("--reference", metavar="MODEL", help="what the torch executor runs; default: MODEL")
    parser.add_argument("-p", "--prompt", default=TEXT, metavar="TEXT")
    parser.add_argument("--tokens", type=int, metavar="N", help="random tokens instead of a text")
    parser.add_argument("--precision", default="fp32", choices=sorted(TOLERANCES))
    parser.add_argument("--tolerance", type=float, metavar="SHARE", help="of a buffer's largest value")
    return parser


def compare(args: argparse.Namespace) -> int:
    """Compare, print what was found, and return 1 where a buffer differs."""
    checkpoint = open_checkpoint(args.model, offline=True)
    other = open_checkpoint(args.reference, offline=True) if args.reference else checkpoint
    core = load_model(LoadRequest(checkpoint, args.precision, "native"))
    torch_model = load_model(LoadRequest(other, "fp32", "torch", exact=False))
    assert isinstance(core, NativeModel)
    assert isinstance(torch_model, TorchModel)
    tokens = prompt_tokens(checkpoint, core.spec, args)
    if not STEP_ROWS < len(tokens) <= PASS_ROWS:
        raise UsageError(f"a prompt of {len(tokens)} tokens: give {STEP_ROWS + 1} to {PASS_ROWS}, by --tokens or -p")
    expected = reference_buffers(torch_model, tokens)
    tolerance = TOLERANCES[args.precision] if args.tolerance is None else args.tolerance
    code = 0
    for name, step in (("a prompt", len(tokens)), (f"a decode step of {STEP_ROWS} rows", STEP_ROWS)):
        found = list(differences(core_buffers(core, tokens, step), expected, len(tokens) - step))
        print(f"{name}: {len(found)} buffers compared; the largest difference of each layer:")
        print("\n".join(by_layer(found)))
        wrong = first_difference(found, tolerance)
        print("no difference" if wrong is None else f"first difference: {wrong}")
        code = code if wrong is None else 1
    print(transformers_verdict(other, core.spec, tokens, expected))
    return code


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the given arguments; default: those of the command line."""
    return run_command(lambda: compare(build_parser().parse_args(argv)), "compare")


if __name__ == "__main__":
    sys.exit(main())
