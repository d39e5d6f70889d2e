"""The Python API: load a target and an assistant once, generate many times."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ipex_assist.executors.registry import ExecutorName
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.loading import load_by
from ipex_assist.generation.text_model import TextModel
from ipex_assist.quantization.precision import KvPrecision, Precision
from ipex_assist.speculative.sources.assistant_name import AUTO, NONE


def load(
    target: str | os.PathLike[str],
    assistant: str | os.PathLike[str] | None = AUTO,
    *,
    precision: Precision | None = None,
    assistant_precision: Precision | None = None,
    universal: bool = False,
    draft_vocabulary: int | None = None,
    draft_threads: int | None = None,
    draft_corpus: str | os.PathLike[str] | None = None,
    draft_history: int | str | None = None,
    recalibrate: bool = False,
    executor: ExecutorName = "auto",
    kv_memory: int | str | None = None,
    kv_precision: KvPrecision | None = None,
    resident: int | str | None = None,
    lora: Mapping[str, str | os.PathLike[str]] | Sequence[str] = (),
    lora_by_default: bool = False,
    kv_share: float | None = None,
    cache_packed: bool | None = None,
    allow_special_tokens: bool = False,
    generation_config: str | os.PathLike[str] = AUTO,
    revision: str | None = None,
    offline: bool = False,
    progress: bool = False,
    quick_start: bool = False,
    calibrate: bool = True,
) -> TextModel:
    """Load a target and its assistant; `generate` and `stream` of what is returned make texts.

    target: hub id, folder or .gguf file. An architecture we have no spec for runs through transformers.
    assistant: likewise; None drafts nothing; "auto": the family's default, or "lookup", which copies from the text so
        far; "self": the target's int4 copy; "lookup+MODEL": both; "mtp+MODEL": the target's own head, or a small model.
    precision: of the weights; None is bf16, or a quantized checkpoint's own 4 bits.
    assistant_precision: likewise; None is the target's, or int4 for "self".
    universal: allow an assistant with another tokenizer, whose drafts are encoded again, as text.
    draft_vocabulary: draft only among the first so many token ids.
    draft_threads: of the assistant's passes of few rows; None: as measured.
    draft_corpus: a file of text that drafts may copy; it and the next one add lookup.
    draft_history: for earlier answers that they may copy, in bytes or "64M"; None: they are not kept.
    recalibrate: forget what was measured of this pair on this machine.
    executor: "auto" is the first of the others that works here.
    kv_memory: for keys and values, in bytes or as "8G"; None: what the weights leave.
    kv_precision: of keys and values; None: attention's.
    resident: for weights of a mixture in a GGUF file, as kv_memory; other experts are read as needed; None: all.
    lora: LoRA adapters in PEFT's format, folders by their names; `generate(…, lora="name")` takes one.
    lora_by_default: texts that name none get the last one, unless they say lora="none".
    kv_share: part of the memory that is left which may become keys and values; None: by the launcher's plan.
    cache_packed: keep packed weights on disk, for quick starts; None: where the disk has room.
    allow_special_tokens: let messages of a chat hold special tokens, which can end a turn and begin another.
    generation_config: sampling defaults; "auto": of the model's generation_config.json, or "none", or another's folder.
    revision: branch, tag or commit of the target on the hub.
    offline: use only what is on this machine.
    progress: show how far loading is, on standard error.
    quick_start: where nothing drafts, return before a packed copy is all in memory.
    calibrate: measure now what passes cost, or read it from the cache folder, and not when it is needed.

    Fields of LoadOptions; torch's threads are the caller's. Raises UsageError for wrong values, else IpexAssistError.
    """
    return load_by(_load_options(**locals()))


def _load_options(
    target: Any, assistant: Any, lora: Any, draft_corpus: Any, generation_config: Any, **others: Any
) -> LoadOptions:
    """What `load` was given, as LoadOptions has it."""
    folders = tuple(f"{name}={os.fspath(at)}" for name, at in lora.items()) if isinstance(lora, Mapping) else lora
    return LoadOptions(
        target=_source(target),
        assistant=NONE if assistant is None else _source(assistant),
        lora=folders,
        draft_corpus=_source(draft_corpus),
        generation_config=_source(generation_config),
        **others,
    )


def _source(value: Any) -> Any:
    """The text of a path; anything else as it is, to be checked with the other options."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value
