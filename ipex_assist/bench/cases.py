"""The cases of each task: prompts, lengths, options, and who contends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ipex_assist.bench.loading import has_no_tokenizer
from ipex_assist.bench.measure import Case, Contender
from ipex_assist.bench.options import TaskOptions
from ipex_assist.bench.prompts import (
    SamplePrompt,
    open_dataset,
    prompt_of_length,
    random_prompt,
    shipped_prompts,
    shipped_text,
)
from ipex_assist.commands.shared.arguments import read_text
from ipex_assist.env.errors import UsageError

if TYPE_CHECKING:
    from ipex_assist.generation.text_model import TextModel

SHORT = "short"  # the kind of the ten prompts of --task decode


def contenders(asked: TaskOptions, model: TextModel) -> list[Contender]:
    """Return plain, and where there is a draft every length with every acceptance. Raises UsageError."""
    plain = Contender()
    if not asked.assisted or model.identity.assistant is None:
        return [plain]
    from ipex_assist.generation.assisted_model import AssistedModel

    if asked.acceptance and not isinstance(model, AssistedModel):
        raise UsageError(
            f"--acceptance: {model.identity.target} runs through transformers, whose drafts cannot be exchanged"
        )
    acceptances: list[float | None] = [*asked.acceptance] or [None]
    drafts = asked.num_assistant_tokens
    return [plain, *(Contender(draft, acceptance) for draft in drafts for acceptance in acceptances)]


def cases(asked: TaskOptions, model: TextModel, notes: list[str]) -> Iterator[Case]:
    """Return the cases that --task asks for; `notes` gets what a reader of the figures must know.

    Raises UsageError where no case fits into the model's context.
    """
    options = _sampling(asked)
    if asked.task == "benchmark":
        yield from _benchmark(asked, model, options, notes)
        return
    prompts = [prompt for prompt in shipped_prompts() if prompt.kind == SHORT]
    if asked.task == "dataset":
        assert asked.dataset is not None
        dataset = open_dataset(asked.dataset)
        if dataset.problems:
            note(
                notes, f"{dataset.name}: {len(dataset.problems)} entries are left out, the first: {dataset.problems[0]}"
            )
        prompts = dataset.sample(asked.samples or None, asked.seed)
        options["chat"] = asked.chat
    (limit,) = asked.max_new_tokens
    for number, prompt in enumerate(prompts, 1):
        example = str(number) if asked.task == "decode" else prompt.id
        content = _content(asked, model, prompt, number)
        chosen = {**options, "max_new_tokens": limit, **({"chat": False} if isinstance(content, list) else {})}
        yield Case(example, content, chosen, asked.repeats, asked.seed, prompt.kind)


def _benchmark(asked: TaskOptions, model: TextModel, options: dict[str, Any], notes: list[str]) -> Iterator[Case]:
    text = read_text(asked.text) if asked.text else shipped_text()
    number, measured = 0, 0
    for length in asked.prompt_tokens:
        for limit in asked.max_new_tokens:
            number += 1
            if model.context_length is not None and length + limit > model.context_length:
                note(notes, f"{length} + {limit} tokens are left out: the context holds {model.context_length}")
                continue
            measured += 1
            prompt = (
                random_prompt(length, model.target.spec.vocab_size, (asked.seed, length))  # type: ignore[attr-defined]
                if has_no_tokenizer(model)
                else prompt_of_length(model.tokenizer, text, length)
            )
            yield Case(str(number), prompt, {**options, "max_new_tokens": limit}, asked.repeats, asked.seed)
    if not measured:
        shortest, limit = min(asked.prompt_tokens), min(asked.max_new_tokens)
        raise UsageError(
            f"nothing to measure: the shortest case has {shortest} + {limit} tokens, and the context of "
            f"{model.identity.target} holds {model.context_length}. Give less with --prompt-tokens or --max-new-tokens"
        )


def _content(asked: TaskOptions, model: TextModel, prompt: SamplePrompt, number: int) -> str | list[int]:
    if not has_no_tokenizer(model) or isinstance(prompt.prompt, list):
        return prompt.prompt
    # Four characters a token, as English text has them.
    count = max(1, len(prompt.prompt) // 4)
    return random_prompt(count, model.target.spec.vocab_size, (asked.seed, number))  # type: ignore[attr-defined]


def _sampling(asked: TaskOptions) -> dict[str, Any]:
    # A dataset's texts end where the model ends them; the other tasks compare texts of equal length.
    return {**asked.sampling, "do_sample": asked.do_sample, "ignore_eos": asked.ignore_eos or asked.task != "dataset"}


def note(notes: list[str], text: str) -> None:
    """Append a text to the notes, unless another of the models has put it there already."""
    if text not in notes:
        notes.append(text)
