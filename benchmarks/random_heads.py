"""What a draft head costs that never helps: heads of random weights for a real target, beside the target alone.

    ipex-launch -- python benchmarks/random_heads.py --target FOLDER|FILE [--precision int4] [--kinds mtp,eagle3,dflash]

The heads have the target's width, one layer, and its embedding and lm_head; `dflash` drafts blocks of eight. Texts take
turns, plain and with each head, forwards and backwards; all give the same tokens, which is checked. Seconds are of
a whole text, its prompt included, which a head may read as well. With `cold` the head is as new to every text, with
`used` it has drafted for the texts before. "÷ plain" is the median over turns and texts of a text's seconds ÷ the mean
of those of the plain ones before and after it; "fastest" compares the fastest turn of each; "processor" compares
seconds of this process's processors, which other programs disturb less where it has one (`taskset -c 0`): threads that
wait for each other use theirs as well. The exit code is 1 where the median is above `--most`.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import draft_prompts
import measure
import torch
from safetensors.torch import save_file

import ipex_assist
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.shared.demo_model import demo_model_path
from ipex_assist.commands.shared.load import leave_cores_to_native
from ipex_assist.engine.stats import EngineStats
from ipex_assist.executors.interface import Model
from ipex_assist.executors.load_request import HeadRequest
from ipex_assist.executors.registry import EXECUTORS
from ipex_assist.generation.assisted_model import AssistedModel
from ipex_assist.models import find
from ipex_assist.models.config import Config
from ipex_assist.models.dflash import dflash_of
from ipex_assist.models.eagle3 import eagle3_of
from ipex_assist.models.head_common import DraftHead
from ipex_assist.models.mtp import mtp_of
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import weight_shape
from ipex_assist.speculative.options import GenerationOptions

KINDS = ("mtp", "eagle3", "dflash")
PROMPTS = draft_prompts.PROMPTS | draft_prompts.COPYING
TEXTS = ("chat", "code", "summary", "edit")
BLOCK_SIZE = 8
STATES = ("cold", "used")


def random_head(kind: str, architecture: str, config: dict[str, Any], target: DecoderSpec) -> DraftHead:
    """A head of one layer that shares the target's embedding and lm_head."""
    if kind == "mtp":
        known = find(architecture)
        assert known is not None
        head = mtp_of(known, config, ["mtp.fc.weight"])
        assert head is not None
        return head
    attention = target.layers[-1].attention
    count, size = target.num_hidden_layers, target.hidden_size
    layers: dict[str, Any] = {
        **{"hidden_size": size, "intermediate_size": 3 * size, "num_hidden_layers": 1, "rms_norm_eps": 1e-6},
        **{"num_attention_heads": attention.heads, "num_key_value_heads": attention.kv_heads},
        **{"head_dim": attention.head_dim, "vocab_size": target.vocab_size},
    }
    if kind == "eagle3":
        return eagle3_of(Config(layers), [], target)
    taps = {"target_layer_ids": [1, count // 2, count - 3], "mask_token_id": 0}
    return dflash_of(Config(layers | {"block_size": BLOCK_SIZE, "dflash_config": taps}), [], target)


def write(folder: Path, head: DraftHead) -> None:
    """Save random weights: norms of ones, linears of a normal distribution."""
    draw = torch.Generator().manual_seed(7)
    tensors = {}
    for ours, source in head.sources.items():
        shape = weight_shape(head.spec, ours)
        one = len(shape) == 1 and not ours.endswith(".bias")
        drawn = torch.ones(shape) if one else torch.randn(shape, generator=draw) * 0.02
        tensors[source.name] = drawn.to(torch.bfloat16).contiguous()
    (folder / "config.json").write_text("{}")
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def load_head(kind: str, args: argparse.Namespace, model: AssistedModel) -> Model:
    """Make a random head for a loaded target and load it."""
    stored = open_checkpoint(str(args.target))
    head = random_head(kind, stored.architecture, dict(stored.config), model.target.spec)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), head)
        executor = model.identity.executor
        return EXECUTORS[executor].load(
            HeadRequest(open_checkpoint(folder), args.head_precision, executor, False, head=head, target=model.target)
        )


class Seconds(NamedTuple):
    """Of a whole text: by the clock, and of this process's processors."""

    clock: float
    processor: float


@dataclass(frozen=True)
class Sample:
    """Seconds of a text with a head, and of the plain ones before and after it; tokens drafted and accepted."""

    before: Seconds
    seconds: Seconds
    after: Seconds
    drafted: int
    accepted: int
    draft_s: float

    @property
    def ratio(self) -> float:
        """Seconds with the head ÷ plain ones."""
        return 2 * self.seconds.clock / (self.before.clock + self.after.clock)

    @property
    def processor_ratio(self) -> float:
        """The same of the processors' seconds."""
        return 2 * self.seconds.processor / (self.before.processor + self.after.processor)


@dataclass
class Contender:
    """A head, as new to every text or as it is after others; its samples by text."""

    name: str
    model: AssistedModel
    cold: bool
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def ratios(self, texts: Sequence[str]) -> list[float]:
        """The ratio of each turn of these texts."""
        return [sample.ratio for sample in self.all(texts)]

    def all(self, texts: Sequence[str]) -> list[Sample]:
        """The samples of these texts."""
        return [sample for text in texts for sample in self.samples[text]]

    def fastest(self, texts: Sequence[str]) -> float:
        """The mean over texts of the fastest turn ÷ the fastest plain one."""
        found = []
        for text in texts:
            samples = self.samples[text]
            plain = min(min(sample.before.clock, sample.after.clock) for sample in samples)
            found.append(min(sample.seconds.clock for sample in samples) / plain)
        return statistics.mean(found)

    def row(self, title: str, texts: Sequence[str]) -> dict[str, str]:
        """A line of the table."""
        ratios, last = self.ratios(texts), [self.samples[text][-1] for text in texts]
        return {
            "head": self.name,
            "text": title,
            "÷ plain": f"{statistics.median(ratios):.3f}",
            "spread": f"{min(ratios):.3f} to {max(ratios):.3f}",
            "fastest": f"{self.fastest(texts):.3f}",
            "processor": f"{statistics.median(each.processor_ratio for each in self.all(texts)):.3f}",
            "drafted": str(sum(sample.drafted for sample in last)),
            "accepted": str(sum(sample.accepted for sample in last)),
            "drafting, ms": f"{1e3 * sum(sample.draft_s for sample in last):.1f}",
        }


def timed(
    model: AssistedModel, tokens: list[int], count: int, assisted: bool
) -> tuple[Seconds, list[int], EngineStats]:
    """Seconds of a whole text, its tokens, and what its engine did; no earlier text's prompt is in a cache."""
    options = GenerationOptions(max_new_tokens=count, ignore_eos=True, assisted=assisted)
    engine = model.engine()
    gc.collect()
    started, used = time.perf_counter(), time.process_time()
    text = [token for each in engine.submit(tokens, options) for token in each.tokens]
    seconds = Seconds(time.perf_counter() - started, time.process_time() - used)
    engine.close()
    return seconds, text, engine.stats


def take_turn(contenders: Sequence[Contender], text: str, count: int, forwards: bool) -> None:
    """Run every contender once on one text, between plain runs of it."""
    first = contenders[0].model
    tokens = first.encode(PROMPTS[text], chat=True)
    before, expected, _ = timed(first, tokens, count, False)
    for contender in contenders if forwards else reversed(contenders):
        if contender.cold:
            contender.model.drafting.forget()
        seconds, found, stats = timed(contender.model, tokens, count, True)
        assert found == expected, f"{contender.name} gives other tokens than the target alone"
        after, _, _ = timed(first, tokens, count, False)
        sample = Sample(before, seconds, after, stats.drafted, stats.accepted, stats.draft_s)
        contender.samples.setdefault(text, []).append(sample)
        before = after


def contenders_of(args: argparse.Namespace) -> list[Contender]:
    """Load the target and its heads, and calibrate each."""
    model = ipex_assist.load(
        *(args.target, None),
        precision=args.precision,
        executor=args.executor,
        kv_memory=args.kv_memory,
        generation_config="none",
    )
    assert isinstance(model, AssistedModel), f"{args.target} runs through transformers"
    leave_cores_to_native()
    made = []
    for kind in args.kinds.split(","):
        head = load_head(kind, args, model)
        for state in args.states.split(","):
            pair = AssistedModel(model.target, model.tokenizer, model.eos, model.identity, head)
            _ = pair.drafting.costs
            made.append(Contender(f"{kind}, {state}", pair, state == "cold"))
    return made


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", help="default: the embedded model of 135 million parameters")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--head-precision", default="bf16")
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--texts", nargs="+", choices=list(PROMPTS), default=list(TEXTS), metavar="NAME")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--kv-memory", default="1G")
    parser.add_argument("--most", type=float, default=1.03, help="of the median of seconds ÷ plain seconds")
    args = parser.parse_args(argv)
    args.target = args.target or str(demo_model_path())
    return args


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    contenders = contenders_of(args)
    first = contenders[0].model
    timed(first, first.encode("Hello.", chat=True), 8, False)  # warms up
    for contender in contenders:
        contender.model.drafting.forget()
        if not contender.cold:
            for text in args.texts:
                timed(contender.model, contender.model.encode(PROMPTS[text], chat=True), args.tokens, True)
    for turn in range(args.turns):
        for text in args.texts:
            take_turn(contenders, text, args.tokens, turn % 2 == 0)
    rows = [each.row(title, texts) for each in contenders for title, texts in _titles(args.texts)]
    medians = {each.name: statistics.median(each.ratios(args.texts)) for each in contenders}
    measure.report(
        rows,
        {
            "precision": first.identity.precision,
            "head_precision": args.head_precision,
            "ratios": medians,
            "costs_s": {each.name: dataclasses.asdict(each.model.drafting.costs) for each in contenders},
            "samples": {
                each.name: {
                    text: [dataclasses.asdict(sample) for sample in samples] for text, samples in each.samples.items()
                }
                for each in contenders
            },
        },
    )
    for name, ratio in medians.items():
        if ratio > args.most:
            print(f"{name}: {ratio:.3f} × the seconds without a head, more than {args.most}", file=sys.stderr)
    return int(max(medians.values()) > args.most)


def _titles(texts: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    return [*((text, [text]) for text in texts), *([("all", texts)] if len(texts) > 1 else [])]


if __name__ == "__main__":
    sys.exit(measure.exit_code(main, lambda message: print(message, file=sys.stderr)))
