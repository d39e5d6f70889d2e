"""The cases of --task throughput: the requests of each concurrency."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from ipex_assist.bench.cases import note
from ipex_assist.bench.loading import has_no_tokenizer
from ipex_assist.bench.options import TaskOptions
from ipex_assist.bench.prompts import (
    mixed_prompts,
    open_dataset,
    random_prompt,
    shipped_prompts,
    shipped_text,
    spread_lengths,
)
from ipex_assist.bench.throughput import LoadCase
from ipex_assist.commands.shared.arguments import read_text
from ipex_assist.env.errors import UsageError

if TYPE_CHECKING:
    from ipex_assist.generation.text_model import TextModel

PROMPT_TOKENS = (30, 300)  # the shortest and the longest prompt, where nothing else is asked for
LEAST_REQUESTS = 16


def load_cases(asked: TaskOptions, model: TextModel, notes: list[str]) -> list[LoadCase]:
    """Return a case for each concurrency: the same requests first, so that their texts can be compared.

    `notes` gets what a reader of the figures must know. Raises UsageError where no prompt fits into the context.
    """
    (limit,) = asked.max_new_tokens
    # Every request has as many tokens as every other: who ends early would make room for others' speed.
    options = {**asked.sampling, "do_sample": asked.do_sample, "ignore_eos": True, "max_new_tokens": limit}
    counts = {each: asked.requests or max(LEAST_REQUESTS, 4 * each) for each in asked.concurrency}
    prompts = _prompts(asked, model, max(counts.values()), limit, notes)
    return [
        LoadCase(concurrency, tuple(prompts[:count]), options, asked.repeats, asked.seed)
        for concurrency, count in counts.items()
    ]


def _prompts(asked: TaskOptions, model: TextModel, count: int, limit: int, notes: list[str]) -> list[tuple[int, ...]]:
    room = None if model.context_length is None else model.context_length - limit
    if asked.dataset is not None:
        return _of_dataset(asked, asked.dataset, model, count, room, notes)
    between = asked.prompt_tokens or PROMPT_TOKENS
    shortest, longest = min(between), max(between)
    if room is not None and longest > room:
        if shortest > room:
            raise UsageError(
                f"nothing to measure: the shortest prompt has {shortest} tokens, {limit} follow, and the context of "
                f"{model.identity.target} holds {model.context_length}. Give less with --prompt-tokens or "
                "--max-new-tokens"
            )
        note(notes, f"prompts have {room} tokens at most, as the context holds {model.context_length}")
        longest = room
    lengths = spread_lengths(count, shortest, longest)
    if has_no_tokenizer(model):
        vocabulary = model.vocab_size
        assert vocabulary is not None
        return [tuple(random_prompt(length, vocabulary, (asked.seed, at))) for at, length in enumerate(lengths)]
    text = read_text(asked.text) if asked.text else shipped_text()
    return [tuple(each) for each in mixed_prompts(model.tokenizer, lengths, text, shipped_prompts(), asked.seed)]


def _of_dataset(
    asked: TaskOptions, source: str, model: TextModel, count: int, room: int | None, notes: list[str]
) -> list[tuple[int, ...]]:
    """As many of a set's prompts as are asked for, those of other lengths left out; from the first again if need be."""
    if has_no_tokenizer(model):
        raise UsageError("a model of random weights has no tokenizer: leave the dataset out, for random prompts")
    dataset = open_dataset(source)
    least = min(asked.prompt_tokens, default=1)
    most = max(asked.prompt_tokens) if asked.prompt_tokens else room
    most = most if room is None or most is None else min(most, room)
    found = []
    for prompt in random.Random(asked.seed).sample(dataset.prompts, len(dataset.prompts)):
        tokens = model.encode(prompt.prompt, chat=asked.chat)
        if least <= len(tokens) and (most is None or len(tokens) <= most):
            found.append(tuple(tokens))
        if len(found) == count:
            return found
    if not found:
        raise UsageError(f"{dataset.name}: no prompt of it has {least} to {most} tokens; change --prompt-tokens")
    note(notes, f"{dataset.name}: {len(found)} prompts have a fitting length, and come again for {count} requests")
    return [found[number % len(found)] for number in range(count)]
