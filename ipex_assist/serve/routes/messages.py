"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's API, for agents that speak it."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ipex_assist.serve.answers.choice_texts import ChoiceTexts
from ipex_assist.serve.answers.messages import MessagesWriter
from ipex_assist.serve.backend import GenerationRequest
from ipex_assist.serve.errors import AnthropicErrorResponse, ApiError, responses
from ipex_assist.serve.protocol.messages import AnsweredMessage, CountedTokens, CountTokens, MessagesRequest
from ipex_assist.serve.routes.completions import STREAM
from ipex_assist.serve.routes.conversations import AskedConversation, output_form, prepare_conversation
from ipex_assist.serve.routes.json_bodies import JsonRoute
from ipex_assist.serve.served_models import ServedModels
from ipex_assist.serve.service import Service
from ipex_assist.serve.streaming import GenerationResponse
from ipex_assist.serve.structured_output import json_schema
from ipex_assist.serve.tools import PreparedConversation

ANY_MODEL = "claude-"  # agents ask for these by themselves: the served model answers for them
ERRORS = responses(400, 401, 404, 413, 429, 500, 503, model=AnthropicErrorResponse)


def _asked(body: CountTokens) -> AskedConversation:
    choice = None if body.tool_choice is None else body.tool_choice.for_template()
    return AskedConversation(
        body.for_template(),
        [tool.for_template() for tool in body.tools or ()],
        choice,
        body.parallel,
        None if (schema := body.answer_schema) is None else json_schema(schema, "output_config.format.schema"),
        "tools[{}].input_schema",
        body.variables,
        None if body.thinking is None else body.thinking.budget_tokens,
    )


async def _opened(models: ServedModels, name: str | None) -> Service:
    return await models.open(None if (name or "").startswith(ANY_MODEL) else name)


async def _prepared(
    service: Service, body: CountTokens, deadline: float
) -> tuple[PreparedConversation, list[int], list[bytes]]:
    """The conversation, its prompt's tokens and images. An assistant's turn at the end begins the answer."""
    service.check_task()
    if body.messages[-1].role != "assistant":
        return await prepare_conversation(service, lambda: _asked(body), deadline)
    *earlier, last = body.messages
    if not earlier or any(block.type != "text" for block in last.blocks):
        raise ApiError(400, "messages: the last one must be the user's, or text of the assistant's to go on with")
    shorter = body.model_copy(update={"messages": earlier})
    return await prepare_conversation(service, lambda: _asked(shorter), deadline, "".join(last.texts))


def router(models: ServedModels) -> APIRouter:
    """Both routes."""
    routes = APIRouter(route_class=JsonRoute)

    @routes.post("/v1/messages", response_model=AnsweredMessage, responses={**STREAM, **ERRORS})
    async def messages(body: MessagesRequest) -> Response:
        """Answer a conversation."""
        service = await _opened(models, body.model)
        deadline = service.deadline()
        turn, tokens, images = await _prepared(service, body, deadline)
        room = service.most_new_tokens(len(tokens), body.max_tokens)
        options = service.adapters.apply(body.sampling().generation_options(room, service.facts.sampling), body)
        begun = body.messages[-1].role == "assistant"
        requests = [GenerationRequest(tokens, options, turn.grammar, continues=begun, images=tuple(images))]
        form = await service.in_thread(output_form, service.tokenizer, turn, tokens)
        texts = ChoiceTexts(requests, len(tokens), None)
        writer = MessagesWriter(service, texts, form, shows_thoughts=body.shows_thoughts)
        return GenerationResponse(service, requests, writer, deadline=deadline, stream=bool(body.stream))

    @routes.post("/v1/messages/count_tokens", responses=ERRORS)
    async def count_tokens(body: CountTokens) -> CountedTokens:
        """How many tokens the prompt of a conversation has."""
        service = await _opened(models, body.model)
        deadline = service.deadline()
        _, tokens, images = await _prepared(service, body, deadline)
        return CountedTokens(input_tokens=len(await service.image_tokens(tokens, images, deadline)))

    return routes
