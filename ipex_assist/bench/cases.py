"""The cases of each task: prompts, lengths, options, and who contends."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ipex_assist.bench.loading import NumberTokens
from ipex_assist.bench.measure import Case, Contender
from ipex_assist.bench.prompts import (
    Prompt,
    open_dataset,
    prompt_of_length,
    random_prompt,
    shipped_prompts,
    shipped_text,
)
from ipex_assist.commands.arguments import read_text
from ipex_assist.env.errors import UsageError
from ipex_assist.env.options import options_of
from ipex_assist.speculative.options import SamplingOptions

if TYPE_CHECKING:
    from ipex_assist.generation.text_model import TextModel

SHORT = "short"  # the kind of the ten prompts of --task decode


def contenders(args: argparse.Namespace, model: TextModel) -> list[Contender]:
    """Return plain, and where there is a draft every length with every acceptance. Raises UsageError."""
    plain = Contender()
    if args.assisted is False or model.identity.assistant is None:
        return [plain]
    from ipex_assist.generation.assisted_model import AssistedModel

    if args.acceptance and not isinstance(model, AssistedModel):
        raise UsageError(
            f"--acceptance: {model.identity.target} runs through transformers, whose drafts cannot be exchanged"
        )
    acceptances: list[float | None] = [*args.acceptance] or [None]
    return [plain, *(Contender(draft, acceptance) for draft in args.num_assistant_tokens for acceptance in acceptances)]


def cases(args: argparse.Namespace, model: TextModel, notes: list[str]) -> Iterator[Case]:
    """Return the cases that --task asks for; `notes` gets what a reader of the figures must know.

    Raises UsageError where no case fits into the model's context.
    """
    options = _sampling(args, notes)
    if args.task == "benchmark":
        yield from _benchmark(args, model, options, notes)
        return
    prompts = [prompt for prompt in shipped_prompts() if prompt.kind == SHORT]
    if args.task == "dataset":
        dataset = open_dataset(args.dataset)
        if dataset.problems:
            note(
                notes, f"{dataset.name}: {len(dataset.problems)} entries are left out, the first: {dataset.problems[0]}"
            )
        prompts = dataset.sample(args.samples or None, args.seed)
        options["chat"] = args.chat
    (limit,) = args.max_new_tokens
    for number, prompt in enumerate(prompts, 1):
        example = str(number) if args.task == "decode" else prompt.id
        content = _content(args, model, prompt, number)
        chosen = {**options, "max_new_tokens": limit, **({"chat": False} if isinstance(content, list) else {})}
        yield Case(example, content, chosen, args.repeats, args.seed, prompt.kind)


def _benchmark(args: argparse.Namespace, model: TextModel, options: dict[str, Any], notes: list[str]) -> Iterator[Case]:
    text = read_text(args.text) if args.text else shipped_text()
    number, measured = 0, 0
    for length in args.prompt_tokens:
        for limit in args.max_new_tokens:
            number += 1
            if model.context_length is not None and length + limit > model.context_length:
                note(notes, f"{length} + {limit} tokens are left out: the context holds {model.context_length}")
                continue
            measured += 1
            prompt = (
                random_prompt(length, model.target.spec.vocab_size, (args.seed, length))  # type: ignore[attr-defined]
                if isinstance(model.tokenizer, NumberTokens)
                else prompt_of_length(model.tokenizer, text, length)
            )
            yield Case(str(number), prompt, {**options, "max_new_tokens": limit}, args.repeats, args.seed)
    if not measured:
        shortest, limit = min(args.prompt_tokens), min(args.max_new_tokens)
        raise UsageError(
            f"nothing to measure: the shortest case has {shortest} + {limit} tokens, and the context of "
            f"{model.identity.target} holds {model.context_length}. Give less with --prompt-tokens or --max-new-tokens"
        )


def _content(args: argparse.Namespace, model: TextModel, prompt: Prompt, number: int) -> str | list[int]:
    if not isinstance(model.tokenizer, NumberTokens) or isinstance(prompt.prompt, list):
        return prompt.prompt
    # Four characters a token, as English text has them.
    count = max(1, len(prompt.prompt) // 4)
    return random_prompt(count, model.target.spec.vocab_size, (args.seed, number))  # type: ignore[attr-defined]


def _sampling(args: argparse.Namespace, notes: list[str]) -> dict[str, Any]:
    drawn = args.do_sample or args.task == "decode"
    if drawn and args.acceptance:
        note(notes, "greedy, though this task draws: a simulation follows the target's greedy text")
        drawn = False
    names = [name for name in options_of(SamplingOptions) if name not in ("do_sample", "seed")]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    # Tables compare equal numbers of tokens.
    return {**given, "do_sample": drawn, "ignore_eos": bool(args.ignore_eos) or args.task != "dataset"}


def note(notes: list[str], text: str) -> None:
    """Once, though several models may come to it."""
    if text not in notes:
        notes.append(text)
