"""Shared by all APIs of conversations: from one with tools to a prompt, a grammar and the form of outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ipex_assist.serve.pictured_messages import Address, pictured
from ipex_assist.serve.protocol.common import with_one_system
from ipex_assist.serve.service import Service
from ipex_assist.serve.tools import SCHEMA_FIELDS, OutputForm, PreparedConversation, prepare, special_words
from ipex_assist.serve.tools.call_grammars import final_message
from ipex_assist.serve.tools.dialects import BY_NAME
from ipex_assist.serve.tools.prepare import grammar_markers
from ipex_assist.speculative.choosing.grammar import GrammarSpec, ThoughtSpec
from ipex_assist.tokenization.thinking import END, HARMONY, START, reader_of, thinking_format, thought_begun

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class AskedConversation:
    """What `tools.prepare` takes of a request body; see there."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    tool_choice: str | Mapping[str, Any] | None
    parallel: bool | None
    response: GrammarSpec | None
    schema_fields: str = SCHEMA_FIELDS
    variables: Mapping[str, Any] | None = None  # of the chat template
    thinking_budget: int | None = None  # tokens of a thought
    field: str = "messages"  # of the body, that has them


async def prepare_conversation(
    service: Service, read: Callable[[], AskedConversation], deadline: float, begun: str = ""
) -> tuple[PreparedConversation, list[int], list[bytes]]:
    """Run `read` and `tools.prepare` in a thread, check the grammars and encode the prompt; returns both results.

    And its images, for each of which the prompt has a placeholder.

    read: of the body, which may have thousands of messages. begun: the beginning of the answer, after which the prompt
    ends. deadline: see `Service.deadline`.
    """

    def work() -> tuple[PreparedConversation, AskedConversation, list[Address]]:
        asked = read()
        messages, images = pictured(asked.messages, service.facts.images, asked.field)
        made = prepare(
            service.tokenizer,
            with_one_system(messages),
            asked.tools,
            asked.tool_choice,
            parallel=asked.parallel is not False,
            response=asked.response,
            schema_fields=asked.schema_fields,
        )
        return made, asked, images

    turn, asked, addresses = await service.in_thread(work)
    images = await service.contents(addresses)
    tokens = await service.encode_chat(turn.messages, turn.tools, asked.variables)
    if begun:
        tokens += await service.encode(begun, False)
    tokens = service.check_prompt(tokens)
    for grammar in (turn.calls, turn.grammar):
        await service.checked(grammar, deadline)
    if turn.grammar is not None or asked.thinking_budget is not None:
        grammar = await service.in_thread(_after_thought, service.tokenizer, turn, tokens, asked.thinking_budget)
        turn = replace(turn, grammar=grammar)
    return turn, tokens, images


def _after_thought(
    tokenizer: PreTrainedTokenizerBase, turn: PreparedConversation, prompt: Sequence[int], budget: int | None
) -> GrammarSpec | None:
    """The grammar of an answer after the model's thought, which may have so many tokens."""
    form = HARMONY if turn.channel else thinking_format(tokenizer)
    if form is None:
        return turn.grammar
    if form is HARMONY and not turn.channel and turn.grammar is not None:
        turn = replace(turn, grammar=final_message(turn.grammar, grammar_markers(tokenizer, BY_NAME["harmony"])))
    if form is HARMONY and budget is None:  # its grammars have the messages before
        return turn.grammar
    closed = f"{END}{START}assistant" if form is HARMONY else form.closed
    thought = ThoughtSpec(form.opened.rstrip(), closed, thought_begun(tokenizer, form, prompt), budget)
    return replace(turn.grammar or GrammarSpec("text"), thought=thought)


def output_form(tokenizer: PreTrainedTokenizerBase, turn: PreparedConversation, prompt: Sequence[int]) -> OutputForm:
    """How the outputs that follow a prompt are read."""
    thinking = HARMONY if turn.channel else thinking_format(tokenizer)
    if thinking is None:
        return OutputForm(None, turn.parser)
    begun = thought_begun(tokenizer, thinking, prompt)
    return OutputForm(partial(reader_of, special_words(tokenizer), thinking, begun), turn.parser)
