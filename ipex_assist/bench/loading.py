"""The models of a run: one pair after another, at each combination of precisions, real or of random weights."""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from ipex_assist import launch
from ipex_assist.bench.pairs import published_config
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.commands.load import memory_need
from ipex_assist.commands.memory_need import PROMPT_TOKENS, MemoryNeed, check_memory
from ipex_assist.env.memory import release_free_memory
from ipex_assist.executors.traffic import linear_bytes, table_bytes
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.models import find
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP
from ipex_assist.speculative.assistant_name import NONE, SELF

if TYPE_CHECKING:
    from ipex_assist.executors.interface import Model
    from ipex_assist.generation.text_model import TextModel

RANDOM = " (random weights)"


class NumberTokens:
    """Stands for the tokenizer of a model without one: a token's text is its number."""

    chat_template = None

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Return the token ids as decimal numbers with spaces between them."""
        return "".join(f"{token} " for token in token_ids)


def needed_bytes(args: argparse.Namespace) -> int | None:
    """The most that any combination takes, before anything is loaded; None where a size is not known."""
    checkpoints = OpenCheckpoints()
    totals = [_need(args, precision, draft, checkpoints).total for precision, draft in _combinations(args)]
    return None if any(total is None for total in totals) else max(total or 0 for total in totals)


def models(args: argparse.Namespace) -> Iterator[tuple[TextModel, list[str]]]:
    """Yield a loaded pair for each combination of precisions, with what is not as the launcher planned it.

    A model is given back as the next one is asked for; whoever holds it must let go of it then.
    Raises IpexAssistError, before anything is built, where a combination does not fit into memory.
    """
    checkpoints = OpenCheckpoints()
    for precision, draft in _combinations(args):
        check_memory(_need(args, precision, draft, checkpoints))
    if args.random_weights:
        yield from _random_models(args)
        return
    from ipex_assist.commands.load import load_models

    # Of several draft lengths, one that depends on measured costs is enough for measuring them.
    adaptive = "adaptive" in (*args.num_assistant_tokens, args.num_assistant_tokens_schedule)
    for precision, draft in _combinations(args):
        one = replace(_load_options(args, precision, draft), calibrate=adaptive)
        model, notes = load_models(
            one, max(args.max_new_tokens), args.threads, verbose=args.verbose, checkpoints=checkpoints
        )
        yield model, notes
        del model
        _release()


def _load_options(args: argparse.Namespace, precision: str | None, draft: str | None) -> LoadOptions:
    names = ("universal", "draft_vocabulary", "recalibrate", "executor", "cache_packed", "revision", "offline")
    assistant = args.assistant_model if args.assisted is not False else NONE
    return LoadOptions.of(
        target=args.model,
        assistant=assistant,
        precision=precision,
        assistant_precision=draft,
        **{name: getattr(args, name) for name in names},
    )


def _combinations(args: argparse.Namespace) -> list[tuple[str | None, str | None]]:
    assistants = args.assistant_precision if args.assisted is not False else [None]
    return list(product(args.precision, assistants))


def _need(
    args: argparse.Namespace, precision: str | None, draft: str | None, checkpoints: OpenCheckpoints
) -> MemoryNeed:
    tokens = max(args.max_new_tokens)
    if not args.random_weights:
        return memory_need(_load_options(args, precision, draft), tokens, checkpoints=checkpoints)
    precision = precision or "bf16"
    target = _spec(args.model)
    length = min(tokens + max(args.prompt_tokens or [PROMPT_TOKENS]), target.context_length)
    kv = length * target.kv_bytes_per_token(4 if precision == "fp32" else 2)
    if not _drafting(args):
        return MemoryNeed(_packed(target, precision), None, kv)
    draft = _draft_precision(args, precision, draft)
    helper = _spec(args.model if args.assistant_model == SELF else args.assistant_model)
    kv += length * helper.kv_bytes_per_token(4 if draft == "fp32" else 2)
    return MemoryNeed(_packed(target, precision), _packed(helper, draft), kv)


def _packed(spec: DecoderSpec, precision: str) -> int:
    return linear_bytes(spec, precision) + table_bytes(spec, precision)


def _spec(source: str) -> DecoderSpec:
    config = published_config(source)
    architecture = find(config["architectures"][0])
    assert architecture is not None, source
    return architecture.spec(config)


def _random(source: str) -> RandomCheckpoint:
    return RandomCheckpoint(source, published_config(source))


def _drafting(args: argparse.Namespace) -> bool:
    return args.assisted is not False and args.assistant_model is not None and args.assistant_model.lower() != "none"


def _draft_precision(args: argparse.Namespace, precision: str, draft: str | None) -> str:
    return draft or ("int4" if args.assistant_model == SELF else precision)


def _random_models(args: argparse.Namespace) -> Iterator[tuple[TextModel, list[str]]]:
    """Targets are built once for all precisions of the draft."""
    from ipex_assist.executors.choose import resolve_executor
    from ipex_assist.executors.load import load_model

    for precision in args.precision:
        precision = precision or "bf16"
        drafts = [_draft_precision(args, precision, draft) for draft in args.assistant_precision]
        executor = resolve_executor(args.executor, precision, *drafts)
        target = load_model(_random(args.model), precision, executor, cache_packed=args.cache_packed)
        for draft in dict.fromkeys(drafts) if _drafting(args) else [None]:
            helper: Model | None = None
            if draft is not None:
                source = args.model if args.assistant_model == SELF else args.assistant_model
                helper = load_model(
                    _random(source),
                    draft,
                    executor,
                    exact=False,
                    cache_packed=args.cache_packed,
                    group=DRAFT_INT4_GROUP,
                )
            yield _assembled(args, target, helper, precision, draft, executor), _settle()
            del helper
            _release()
        del target
        _release()


def _assembled(
    args: argparse.Namespace,
    target: Model,
    helper: Model | None,
    precision: str,
    draft: str | None,
    executor: str,
) -> TextModel:
    from ipex_assist.generation.assisted_model import AssistedModel
    from ipex_assist.generation.result import Identity

    assistant = args.assistant_model + RANDOM if helper is not None else None
    identity = Identity(args.model + RANDOM, assistant, precision, draft, executor)
    tokenizer: Any = NumberTokens()
    return AssistedModel(target, tokenizer, frozenset(), identity, helper)


def _settle() -> list[str]:
    """Give threads yet to come all CPUs, and look at what came of the plan, as `ipex-assist` does after loading."""
    from ipex_assist.executors.choose import compute_threads

    plan = launch.inherited_plan(os.environ)
    launch.restore_affinity(plan)
    return launch.check_start(plan, compute_threads()) if plan else []


def _release() -> None:
    gc.collect()
    release_free_memory()
