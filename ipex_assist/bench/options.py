"""What a run of `ipex-assist bench` loads and measures, as its flags have it. Never imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ipex_assist.generation.load_options import LoadOptions


@dataclass(frozen=True)
class PairOptions:
    """A target and an assistant, loaded at each combination of precisions.

    load: all but the precisions, None among which is the default. random_weights: the exact shapes, with weights that
    nobody trained. prompt_tokens (None: not known), max_new_tokens: of the longest text. threads: where no launcher has
    planned them. verbose: whether to report loading. concurrency: the most requests at a time. layers: how many of the
    target's, where its weights are random; None is all.
    """

    load: LoadOptions
    precisions: tuple[str | None, ...]
    assistant_precisions: tuple[str | None, ...]
    random_weights: bool
    prompt_tokens: int | None
    max_new_tokens: int
    threads: int | None
    verbose: bool
    concurrency: int = 1
    layers: int | None = None


@dataclass(frozen=True)
class TaskOptions:
    """What models are measured on.

    task: "benchmark" (every length of `prompt_tokens`, from the beginning of `text`, with every one of
    `max_new_tokens`), "decode", "dataset" (`samples` of its prompts, 0 is all), or "throughput" (`requests` in all, as
    many of them at once as each of `concurrency` says; prompts between the least and the largest of `prompt_tokens`).
    num_assistant_tokens, acceptance: of the contenders, beside the plain one; assisted False: that one alone. sampling:
    of GenerationOptions, what was given.
    """

    task: str
    dataset: str | None
    samples: int | None
    chat: bool
    text: str | None
    prompt_tokens: tuple[int, ...]
    max_new_tokens: tuple[int, ...]
    repeats: int
    seed: int
    assisted: bool
    num_assistant_tokens: tuple[int | str, ...]
    acceptance: tuple[float, ...]
    do_sample: bool
    ignore_eos: bool
    sampling: Mapping[str, Any]
    concurrency: tuple[int, ...] = ()
    requests: int | None = None
