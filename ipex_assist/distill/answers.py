"""The target's answers to prompts: many requests a pass, each kept as soon as it is complete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ipex_assist.distill.work_folder import AnsweredPrompt, WorkFolder
from ipex_assist.env.errors import IpexAssistError, UsageError

if TYPE_CHECKING:
    from ipex_assist.batch.prompts import Prompt
    from ipex_assist.generation.text_model import TextModel

AT_ONCE = 32  # requests that are in the engine together
LEAST_ANSWER = 4  # tokens of an answer that a head can learn from
Said = Callable[[str], None]


def encode(model: TextModel, prompts: Sequence[Prompt], longest: int, said: Said) -> list[tuple[Prompt, list[int]]]:
    """Prompts with their token ids; those that leave no room for an answer within `longest` tokens are left out."""
    found, problem = [], ""
    for prompt in prompts:
        try:
            tokens = model.encode(prompt.messages or prompt.prompt or "", chat=prompt.chat)
        except UsageError as error:
            problem = problem or str(error)
            continue
        if len(tokens) + LEAST_ANSWER <= longest:
            found.append((prompt, tokens))
        else:
            problem = problem or f"its {len(tokens)} tokens leave no room for an answer within --max-length {longest}"
    if len(found) < len(prompts):
        said(f"{len(prompts) - len(found)} of {len(prompts)} prompts are left out; the first: {problem}")
    if len(found) < 2:
        raise IpexAssistError(f"{len(found)} prompts are left; at least 2 are needed, one of them to be held out")
    return found


def write_answers(
    model: TextModel, prompts: Sequence[tuple[Prompt, list[int]]], folder: WorkFolder, longest: int, said: Said
) -> None:
    """Generate the answers that are not there yet, and append them to the folder's."""
    folder.mend()
    there = {sample.digest for sample in folder.samples()}
    missing = [(prompt, tokens) for prompt, tokens in prompts if prompt.digest() not in there]
    for first in range(0, len(missing), AT_ONCE):
        group = missing[first : first + AT_ONCE]
        streams = [
            model.stream(tokens, replace(prompt.options, max_new_tokens=_room(prompt, tokens, longest)))
            for prompt, tokens in group
        ]
        for (prompt, tokens), stream in zip(group, streams, strict=True):
            for _ in stream:
                pass
            folder.add(AnsweredPrompt(prompt.digest(), tokens + stream.result().tokens, len(tokens)))
        said(f"answers: {len(prompts) - len(missing) + first + len(group)} of {len(prompts)} prompts")


def _room(prompt: Prompt, tokens: list[int], longest: int) -> int:
    return min(prompt.options.max_new_tokens, longest - len(tokens))


def usable(folder: WorkFolder, digests: Sequence[str]) -> list[AnsweredPrompt]:
    """The answers to these prompts that are long enough, in an order that has nothing to do with the file's.

    The last of them are held out. Raises IpexAssistError where fewer than two are left.
    """
    wanted = set(digests)
    found = {sample.digest: sample for sample in folder.samples() if sample.digest in wanted}
    samples = [found[digest] for digest in sorted(found)]
    samples = [each for each in samples if len(each.tokens) - each.prompt_tokens >= LEAST_ANSWER]
    if len(samples) < 2:
        raise IpexAssistError(
            f"{len(samples)} of {len(digests)} answers have {LEAST_ANSWER} tokens or more; at least 2 are needed: ask "
            "for longer ones with --max-new-tokens, or put prompts into the chat template with --chat"
        )
    return samples
