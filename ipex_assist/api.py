"""The Python API: load a target and an assistant once, generate many times."""

from __future__ import annotations

from typing import Any

from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.loading import load_by
from ipex_assist.generation.text_model import TextModel
from ipex_assist.speculative.assistant_name import AUTO, NONE


def load(target: str, assistant: str | None = AUTO, **options: Any) -> TextModel:
    """Load a target and its assistant.

    target, assistant: hub id, folder, or .gguf file. assistant "auto" is the family's default, None is none; "self" is
    the target's own int4 copy, "lookup" copies from the text so far, "lookup+MODEL" both ("auto-lookup" is
    "lookup+auto"). options: the other fields of LoadOptions, by their names. An architecture we have no spec for runs
    through transformers, with the same methods.
    torch's number of threads is the caller's, before and after. The native core has a pool of its own, one thread a
    core; where torch does nothing else, torch.set_num_threads(1) after loading, as the commands do it, keeps torch's
    pool from spinning against that while a large vocabulary is sampled from.
    Raises UsageError for an unknown option, an invalid value, or a combination that cannot work, IpexAssistError
    where a model cannot be loaded.
    """
    return load_by(LoadOptions.of(target=target, assistant=NONE if assistant is None else assistant, **options))
