"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ipex_assist.serve.answers.chat import ChatWriter
from ipex_assist.serve.answers.choice_texts import ChoiceTexts
from ipex_assist.serve.answers.completions import CompletionWriter, EchoedPrompt
from ipex_assist.serve.backend import GenerationRequest
from ipex_assist.serve.errors import ApiError, responses
from ipex_assist.serve.protocol.chat import ChatCompletion, ChatRequest
from ipex_assist.serve.protocol.common import MOST_BIASES, SamplingFields, options_per_choice
from ipex_assist.serve.protocol.completions import DEFAULT_TOKENS, Completion, CompletionRequest
from ipex_assist.serve.protocol.tools import NamedTool
from ipex_assist.serve.routes.conversations import AskedConversation, output_form, prepare_conversation
from ipex_assist.serve.routes.json_bodies import JsonRoute
from ipex_assist.serve.served_models import ServedModels
from ipex_assist.serve.service import Service
from ipex_assist.serve.streaming import GenerationResponse
from ipex_assist.serve.structured_output import grammar_of
from ipex_assist.speculative.choosing.grammar import GrammarSpec
from ipex_assist.speculative.options import bias_fault

ERRORS = responses(400, 401, 404, 413, 429, 500, 503)
# The schema of each event of a stream.
_EVENT = {
    "type": "object",
    "properties": {"event": {"type": "string"}, "data": {"type": "string", "description": "JSON, or [DONE]"}},
    "required": ["data"],
}
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}


def check_biases(service: Service, body: SamplingFields, texts: int = 1) -> None:
    """Raise 400 for a logit_bias of a token id that does not exist or is never written, or of too many for so many
    texts."""
    facts, biases = service.facts, body.logit_bias or {}
    if (fault := bias_fault(biases, facts.vocab_size, facts.lm_head_rows)) is not None:
        raise ApiError(400, f"logit_bias: {fault}", param="logit_bias")
    if len(biases) * texts > MOST_BIASES:
        raise ApiError(
            400,
            f"logit_bias: {len(biases):,} biases for each of {texts:,} texts are {len(biases) * texts:,}, and a "
            f"request may have {MOST_BIASES:,}: ask for fewer texts, or bias fewer tokens",
            param="logit_bias",
        )


def _begun(body: ChatRequest) -> str | None:
    """The beginning of the answer, where the last message is to be continued. Raises 400 where that cannot be."""
    if not body.continue_final_message:
        if body.add_generation_prompt is False:
            raise ApiError(
                400, "add_generation_prompt: false goes with continue_final_message", param="add_generation_prompt"
            )
        return None
    *earlier, last = (message.for_template() for message in body.messages)
    if body.add_generation_prompt or not earlier or last.keys() != {"role", "content"} or last["role"] != "assistant":
        raise ApiError(
            400,
            "continue_final_message: the last message must be the assistant's text, and add_generation_prompt false",
            param="continue_final_message",
        )
    return str(last["content"])


def _asked(body: ChatRequest, begun: str | None) -> AskedConversation:
    return AskedConversation(
        [message.for_template() for message in (body.messages if begun is None else body.messages[:-1])],
        body.tool_fields(),
        body.tool_choice.model_dump() if isinstance(body.tool_choice, NamedTool) else body.tool_choice,
        body.parallel_tool_calls,
        grammar_of(body.grammar_fields()),
        variables=body.template_variables,
        thinking_budget=body.budget,
    )


def _completion_requests(
    service: Service, body: CompletionRequest, prompts: list[list[int]], rooms: list[int], grammar: GrammarSpec | None
) -> list[GenerationRequest]:
    """All texts of the prompts, of which there may be 128 × 128. rooms: max_new_tokens of each prompt's."""
    options = body.generation_options(1, service.facts.sampling, body.logprobs, body.logprobs if body.echo else None)
    options = service.adapters.apply(options, body)
    return [
        GenerationRequest(tokens, each, grammar, continues=True)
        for tokens, room in zip(prompts, rooms, strict=True)
        for each in options_per_choice(replace(options, max_new_tokens=room), body.n or 1)
    ]


def router(models: ServedModels) -> APIRouter:
    """Both routes."""
    routes = APIRouter(route_class=JsonRoute)

    @routes.post("/v1/chat/completions", response_model=ChatCompletion, responses={**STREAM, **ERRORS})
    async def chat_completions(body: ChatRequest) -> Response:
        """Answer a conversation."""
        service = await models.open(body.model)
        service.check_task()
        check_biases(service, body, body.n or 1)
        deadline = service.deadline()
        begun = await service.in_thread(_begun, body)
        turn, tokens, images = await prepare_conversation(service, lambda: _asked(body, begun), deadline, begun or "")
        room = service.most_new_tokens(len(tokens), body.wanted_tokens)
        options = body.generation_options(room, service.facts.sampling, body.wanted_logprobs)
        options = service.adapters.apply(options, body)
        requests = [
            GenerationRequest(tokens, each, turn.grammar, images=tuple(images))
            for each in options_per_choice(options, body.n or 1)
        ]
        named = None if options.logprobs is None else service.token_texts
        form = await service.in_thread(output_form, service.tokenizer, turn, tokens)
        writer = ChatWriter(service, ChoiceTexts(requests, len(tokens), named), body, form)
        return GenerationResponse(service, requests, writer, deadline=deadline, stream=bool(body.stream))

    @routes.post("/v1/completions", response_model=Completion, responses={**STREAM, **ERRORS})
    async def completions(body: CompletionRequest) -> Response:
        """Complete a text, or several."""
        service = await models.open(body.model)
        service.check_task()
        special, count = body.add_special_tokens is not False, body.n or 1
        check_biases(service, body, len(body.prompts) * count)
        deadline = service.deadline()
        if body.echo and body.stream and body.logprobs is not None:
            raise ApiError(400, "echo: log-probabilities of a prompt are not streamed: leave out stream", param="echo")
        prompts: list[list[int]] = []
        echoed: list[EchoedPrompt] = []
        for prompt in body.prompts:
            tokens = await service.encode(prompt, special) if isinstance(prompt, str) else prompt
            prompts.append(await service.in_thread(service.check_prompt, tokens))
            if body.echo:
                text = prompt if isinstance(prompt, str) else await service.decode(prompts[-1])
                echoed += [EchoedPrompt(text, prompts[-1])] * count
        grammar = await service.checked(await service.in_thread(lambda: grammar_of(body.grammar_fields())), deadline)
        rooms = [service.most_new_tokens(len(tokens), body.max_tokens or DEFAULT_TOKENS) for tokens in prompts]
        named = None if body.logprobs is None else service.token_texts

        def work() -> tuple[list[GenerationRequest], ChoiceTexts]:
            requests = _completion_requests(service, body, prompts, rooms, grammar)
            return requests, ChoiceTexts(requests, sum(map(len, prompts)), named, shows_end=True)

        requests, texts = await service.in_thread(work)
        writer = CompletionWriter(service, texts, body, echoed if body.echo else None)
        return GenerationResponse(service, requests, writer, deadline=deadline, stream=bool(body.stream))

    return routes
