"""The models that engine_soak.py loads: a target with adapters, what drafts for it, and the grammars of its texts."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1]))  # what the tests share

import adapter_files
import draft_heads
import grammars

from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.engine.engine import Engine
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.load import load_head, load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.generation.loading import add_adapters
from ipex_assist.generation.second_assistant import head_first, is_draft_head
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP
from ipex_assist.speculative.choosing.grammar import Grammar, GrammarSpec
from ipex_assist.speculative.choosing.llguidance_grammar import GrammarCompiler
from ipex_assist.speculative.costs import calibration
from ipex_assist.speculative.costs.pair_costs import Costs
from ipex_assist.speculative.drafting import Drafting
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.speculative.sources.assistant_name import MTP, SELF, parse_assistant
from ipex_assist.tokenization.tokenizer import eos_token_ids, load_tokenizer

CHEAP = Costs((1e-3,) * 16, 1e-6, (1e-6,) * 16, 1e-7)  # of the small model: both assistants draft, on any machine
CONTEXT = 2048
ATTENTION = r"model\.layers\.[01]\.self_attn\.({})"  # of the layers that are not its draft head's
SMALL_ADAPTERS: dict[str, tuple[int, str]] = {  # rank and modules
    "one": (4, ATTENTION.format("q_proj|k_proj|v_proj|o_proj")),
    "two": (16, ATTENTION.format("q_proj|v_proj")),
    "wide": (40, ATTENTION.format("k_proj|o_proj")),
}


class SoakModels:
    """The target, what drafts, and a copy of the target with memory of its own, which shares the weights.

    head: None where a small model drafts alone. vocabulary: ids below it are in prompts.
    """

    def __init__(self, args: argparse.Namespace, folder: Path) -> None:
        """folder: where the small model is written, if there is no --target."""
        small = args.target is None
        adapters = save_small(folder) if small else {Path(each).name: each for each in args.lora}
        self._checkpoints, self._args = OpenCheckpoints(), args
        self._checkpoint = self._checkpoints.open(str(folder) if small else args.target)
        self._memory = KvMemory(args.kv_memory << 20 if args.kv_memory else None)
        asked = LoadRequest(self._checkpoint, args.precision, "native", kv_memory=self._memory)
        self.target = _native(load_model(asked))
        add_adapters(adapters, "native", asked, self.target)
        self.adapters = list(adapters)
        name = head_first(
            parse_assistant(args.assistant or (f"{MTP}+{SELF}" if small else SELF)), self._checkpoints, offline=False
        )
        self.assistants = [_native(self._assistant(each)) for each in (name.model, name.second) if each is not None]
        if not self.assistants:
            raise IpexAssistError(f"--assistant {args.assistant}: nothing drafts. Name a model, mtp, self or mtp+self")
        self.models = [self.target, *self.assistants]
        if not args.kv_memory:  # so little that texts get into each other's way
            self._memory.limit = sum(each.block_bytes for each in self.models) * max(args.concurrency, 6)
        self.vocabulary = min(each.spec.vocab_size for each in self.models)
        self.drafting = self._drafting(self.assistants, small)
        self.drafting.lookup = True
        self._read_grammars(small)
        alone = KvMemory(self.target.block_bytes * -(-self.target.spec.context_length // 256))
        self._alone = NativeModel(self.target.packed, alone)
        self._alone.adapters = self.target.adapters
        self.blocks = self.target.blocks

    @property
    def two(self) -> bool:
        """Whether a draft head and a small model draft in turn."""
        return len(self.assistants) > 1

    def _assistant(self, name: str) -> Any:
        """The model that a part of --assistant names."""
        memory, precision, target = self._memory, self._args.assistant_precision, self._checkpoint
        checkpoint = None if name in (MTP, SELF) else self._checkpoints.open(name)
        if name == MTP or (checkpoint is not None and is_draft_head(checkpoint)):
            return load_head(
                target, self.target, checkpoint, precision, "native", group=DRAFT_INT4_GROUP, kv_memory=memory
            )
        table_of = self.target if checkpoint is None else None
        return load_model(
            LoadRequest(
                checkpoint or target,
                precision,
                "native",
                exact=False,
                table_of=table_of,
                group=DRAFT_INT4_GROUP,
                kv_memory=memory,
            )
        )

    def _drafting(self, assistants: Sequence[NativeModel], small: bool) -> Drafting:
        first, *others = assistants
        return Drafting(
            self.target.spec.vocab_size,
            lambda: CHEAP if small else calibration.calibrate(self.target, first, None),
            first,
            second=self._drafting(others, small) if others else None,
        )

    def _read_grammars(self, small: bool) -> None:
        if small:
            self._grammars, self.eos = grammars.tiny_grammars(), frozenset([grammars.EOS])
            return
        tokenizer = load_tokenizer(self._checkpoint)
        self.eos = frozenset(eos_token_ids(self._checkpoint, tokenizer))
        self._grammars = GrammarCompiler.of(tokenizer, self.target.spec.vocab_size, self.eos)

    def grammar(self, spec: GrammarSpec | None) -> Grammar | None:
        """A grammar before the first token; None for None."""
        return None if spec is None else self._grammars.grammar(spec)

    def alone(self, prompt: Sequence[int], options: GenerationOptions, spec: GrammarSpec | None) -> list[int]:
        """The text of a request that nothing runs beside, and nobody drafts for."""
        engine = Engine(self._alone, Drafting(self.target.spec.vocab_size, self._no_costs), self.eos)
        plain = GenerationOptions.of(options, assisted=False)
        rounds = engine.submit(prompt, plain, grammar=self.grammar(spec))
        text = [token for round_ in rounds for token in round_.tokens]
        engine.close()  # its memory of prefixes fills the blocks there are
        return text

    def _no_costs(self) -> Any:
        raise AssertionError("nothing drafts")

    def used(self) -> int:
        """Blocks of all models that are not free."""
        return sum(each.blocks.count - each.blocks.free for each in self.models)


def _native(model: Any) -> NativeModel:
    if not isinstance(model, NativeModel):
        raise IpexAssistError(f"the soak counts the blocks of single models of the native core, not {type(model)}'s")
    return model


def save_small(folder: Path) -> dict[str, str]:
    """Write a model of random weights whose draft head is often right; returns its adapters, folders by name."""
    model = draft_heads.save_mtp_often_right(folder, max_position_embeddings=CONTEXT)
    return {
        name: str(adapter_files.save_adapter(folder / name, model, rank, modules, seed))
        for seed, (name, (rank, modules)) in enumerate(SMALL_ADAPTERS.items(), 1)
    }
