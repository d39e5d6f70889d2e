"""Shared by chat and responses: from a conversation with tools to a prompt, a grammar and a call parser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipex_assist.serve.service import Service
from ipex_assist.serve.tools import PreparedConversation, prepare
from ipex_assist.speculative.grammar import GrammarSpec


async def prepare_conversation(
    service: Service,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    tool_choice: str | Mapping[str, Any] | None,
    *,
    parallel: bool | None,
    response: GrammarSpec | None,
) -> tuple[PreparedConversation, list[int]]:
    """Run `tools.prepare`, check its grammars and encode the prompt; returns both results."""
    turn = await service.in_thread(
        prepare,
        service.tokenizer,
        messages,
        tools,
        tool_choice,
        parallel=parallel is not False,
        response=response,
    )
    tokens = service.check_prompt(await service.encode_chat(turn.messages, turn.tools))
    for grammar in (turn.calls, turn.grammar):
        await service.checked(grammar)
    return turn, tokens
