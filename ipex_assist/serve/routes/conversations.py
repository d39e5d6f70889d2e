"""Shared by all APIs of conversations: from one with tools to a prompt, a grammar and the form of outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ipex_assist.serve.protocol.common import with_one_system
from ipex_assist.serve.service import Service
from ipex_assist.serve.tools import SCHEMA_FIELDS, OutputForm, PreparedConversation, prepare, special_words
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.tokenization.thinking import HARMONY, reader_of, thinking_format, thought_begun

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


async def prepare_conversation(
    service: Service, read: Callable[[], AskedConversation], deadline: float, begun: str = ""
) -> tuple[PreparedConversation, list[int]]:
    """Run `read` and `tools.prepare` in a thread, check the grammars and encode the prompt; returns both results.

    read: of the body, which may have thousands of messages. begun: the beginning of the answer, after which the prompt
    ends. deadline: see `Service.deadline`.
    """

    def work() -> tuple[PreparedConversation, Mapping[str, Any] | None]:
        asked = read()
        made = prepare(
            service.tokenizer,
            with_one_system(list(asked.messages)),
            asked.tools,
            asked.tool_choice,
            parallel=asked.parallel is not False,
            response=asked.response,
            schema_fields=asked.schema_fields,
        )
        return made, asked.variables

    turn, variables = await service.in_thread(work)
    tokens = await service.encode_chat(turn.messages, turn.tools, variables)
    if begun:
        tokens += await service.encode(begun, False)
    tokens = service.check_prompt(tokens)
    for grammar in (turn.calls, turn.grammar):
        await service.checked(grammar, deadline)
    return turn, tokens


def output_form(tokenizer: PreTrainedTokenizerBase, turn: PreparedConversation, prompt: Sequence[int]) -> OutputForm:
    """How the outputs that follow a prompt are read."""
    thinking = HARMONY if turn.channel else thinking_format(tokenizer)
    if thinking is None:
        return OutputForm(None, turn.parser)
    begun = thought_begun(tokenizer, thinking, prompt)
    return OutputForm(partial(reader_of, special_words(tokenizer), thinking, begun), turn.parser)
