"""The models of a run: one pair after another, at each combination of precisions, real or of random weights."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from ipex_assist import launch
from ipex_assist.bench.options import PairOptions
from ipex_assist.bench.pairs import first_layers, published_config, shown_layers
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.checkpoints.open import OpenCheckpoints
from ipex_assist.commands.shared.demo_model import demo_options
from ipex_assist.commands.shared.load import leave_cores_to_native, memory_need
from ipex_assist.commands.shared.memory_need import (
    PROMPT_TOKENS,
    MemoryNeed,
    check_memory,
    need_of,
    wanted_rows,
    within,
)
from ipex_assist.commands.shared.native_runs import runs_native
from ipex_assist.env.memory import release_free_memory
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.model_bytes import library_bytes, native_bytes
from ipex_assist.executors.planned_bytes import ModelBytes
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.models import find
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.quantization.precision import DRAFT_INT4_GROUP, INT4_GROUP
from ipex_assist.speculative.sources.assistant_name import SELF

if TYPE_CHECKING:
    from ipex_assist.executors.interface import Model
    from ipex_assist.generation.text_model import TextModel

RANDOM = " (random weights{})"


class NumberTokens:
    """Stands for the tokenizer of a model without one: a token's text is its number."""

    chat_template = None

    def decode(self, token_ids: list[int], skip_special_tokens: bool = False) -> str:
        """Return the token ids as decimal numbers with spaces between them."""
        return "".join(f"{token} " for token in token_ids)


def has_no_tokenizer(model: TextModel) -> bool:
    """Whether a model's tokenizer is NumberTokens."""
    tokenizer: object = model.tokenizer  # a text model's type says another one
    return isinstance(tokenizer, NumberTokens)


def needed_bytes(asked: PairOptions) -> int | None:
    """The most that any combination takes, before anything is loaded; None where a size is not known."""
    if asked.load.target is None:
        return None  # the embedded model, which fits anywhere
    checkpoints = OpenCheckpoints()
    totals = [_need(asked, load, checkpoints).total for load in _combinations(asked)]
    return None if any(total is None for total in totals) else max(total or 0 for total in totals)


def models(asked: PairOptions) -> Iterator[tuple[TextModel, list[str]]]:
    """Yield a loaded pair for each combination of precisions, with what is not as the launcher planned it.

    A model is given back as the next one is asked for; whoever holds it must let go of it then.
    Raises IpexAssistError, before anything is built, where a combination does not fit into memory.
    """
    checkpoints, combinations = OpenCheckpoints(), _combinations(asked)
    for load in combinations:
        check_memory(_need(asked, load, checkpoints))
    if asked.random_weights:
        yield from _random_models(asked)
        return
    from ipex_assist.commands.shared.load import load_models

    for load in combinations:
        model, notes = load_models(
            load, asked.max_new_tokens, asked.threads, verbose=asked.verbose, checkpoints=checkpoints
        )
        yield model, notes
        del model
        _release()


def _combinations(asked: PairOptions) -> list[LoadOptions]:
    """What to load for each pair of precisions. Without a target it is the embedded model."""
    each = product(asked.precisions, asked.assistant_precisions)
    loads = [replace(asked.load, precision=precision, assistant_precision=draft) for precision, draft in each]
    return [demo_options(load) if load.target is None else load for load in loads]


def _need(asked: PairOptions, load: LoadOptions, checkpoints: OpenCheckpoints) -> MemoryNeed:
    lengths = ((asked.prompt_tokens or PROMPT_TOKENS) + asked.max_new_tokens,) * asked.concurrency
    if not asked.random_weights:
        return memory_need(load, asked.max_new_tokens, checkpoints=checkpoints, lengths=lengths)
    precision, draft = load.precision or "bf16", load.assistant_precision
    bytes_of = functools.partial(_bytes, asked, lengths=lengths)
    target, other = bytes_of(_target(asked), precision), None
    if asked.load.assists:
        other = bytes_of(_assistant(asked), _draft_precision(asked, precision, draft), group=DRAFT_INT4_GROUP)
    return within(need_of(target, other, lengths), asked.load.kv_memory)


def _bytes(
    asked: PairOptions, source: str, precision: str, *, lengths: Sequence[int], group: int = INT4_GROUP
) -> ModelBytes:
    spec, kv = _spec(asked, source), asked.load.kv_precision
    if not runs_native(asked.load):
        return library_bytes(spec, precision, kv_precision=kv)
    wanted = wanted_rows(len(lengths))
    return native_bytes(spec, precision, wanted=wanted, longest=max(lengths), group=group, kv_precision=kv)


def _config(asked: PairOptions, source: str) -> dict[str, Any]:
    """Of a model of random weights: the target may be cut to its first layers."""
    config = published_config(source)
    return config if asked.layers is None or source != _target(asked) else first_layers(config, asked.layers)


def _spec(asked: PairOptions, source: str) -> DecoderSpec:
    config = _config(asked, source)
    architecture = find(config["architectures"][0])
    assert architecture is not None, source
    return architecture.spec(config)


def _random(asked: PairOptions, source: str) -> RandomCheckpoint:
    return RandomCheckpoint(source, _config(asked, source))


def _target(asked: PairOptions) -> str:
    assert asked.load.target is not None
    return asked.load.target


def _assistant(asked: PairOptions) -> str:
    """The model that drafts: the target's own copy is one of its shapes."""
    return _target(asked) if asked.load.assistant == SELF else asked.load.assistant


def _draft_precision(asked: PairOptions, precision: str, draft: str | None) -> str:
    return draft or ("int4" if asked.load.assistant == SELF else precision)


def _random_models(asked: PairOptions) -> Iterator[tuple[TextModel, list[str]]]:
    """Targets are built once for all precisions of the draft."""
    from ipex_assist.executors.load import load_model
    from ipex_assist.executors.load_request import LoadRequest
    from ipex_assist.executors.select_executor import resolve_executor

    for precision in asked.precisions:
        precision = precision or "bf16"
        drafts = [_draft_precision(asked, precision, draft) for draft in asked.assistant_precisions]
        executor = resolve_executor(asked.load.executor, precision, *drafts)
        kv_memory = KvMemory(asked.load.kv_memory)
        target = load_model(
            LoadRequest(
                _random(asked, _target(asked)),
                precision,
                executor,
                cache_packed=asked.load.cache_packed,
                kv_precision=asked.load.kv_precision,
                kv_memory=kv_memory,
            )
        )
        for draft in dict.fromkeys(drafts) if asked.load.assists else [None]:
            assistant_model: Model | None = None
            if draft is not None:
                assistant_model = load_model(
                    LoadRequest(
                        _random(asked, _assistant(asked)),
                        draft,
                        executor,
                        exact=False,
                        cache_packed=asked.load.cache_packed,
                        group=DRAFT_INT4_GROUP,
                        kv_precision=asked.load.kv_precision,
                        kv_memory=kv_memory,
                    )
                )
            yield _assembled(asked, target, assistant_model, precision, draft, executor), _settle()
            del assistant_model
            _release()
        del target
        _release()


def _assembled(
    asked: PairOptions,
    target: Model,
    assistant_model: Model | None,
    precision: str,
    draft: str | None,
    executor: str,
) -> TextModel:
    from ipex_assist.generation.assisted_model import AssistedModel
    from ipex_assist.generation.result import Identity

    cut = RANDOM.format(shown_layers(published_config(_target(asked)), asked.layers))
    own = cut if asked.load.assistant == SELF else RANDOM.format("")
    assistant = asked.load.assistant + own if assistant_model is not None else None
    identity = Identity(_target(asked) + cut, assistant, precision, draft, executor, target.kv_precision)
    tokenizer: Any = NumberTokens()
    return AssistedModel(target, tokenizer, frozenset(), identity, assistant_model)


def _settle() -> list[str]:
    """Give threads yet to come all CPUs, and look at what came of the plan, as `ipex-assist` does after loading."""
    from ipex_assist.executors.select_executor import compute_threads

    leave_cores_to_native()
    plan = launch.inherited_plan(os.environ)
    launch.restore_affinity(plan)
    return launch.check_start(plan, compute_threads()) if plan else []


def _release() -> None:
    gc.collect()
    release_free_memory()
