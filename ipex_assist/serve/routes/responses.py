"""POST /v1/responses; GET and DELETE of stored responses."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from ipex_assist.serve.answers.choice_texts import ChoiceTexts
from ipex_assist.serve.answers.response_store import ResponseStore, StoredResponse
from ipex_assist.serve.answers.responses import ResponseWriter
from ipex_assist.serve.answers.writer import compact
from ipex_assist.serve.backend import GenerationRequest
from ipex_assist.serve.errors import responses
from ipex_assist.serve.protocol.responses import Deleted, FlatSchema, ModelResponse, ResponsesRequest, TextConfig
from ipex_assist.serve.protocol.structured import JsonObject
from ipex_assist.serve.routes.completions import ERRORS, STREAM, check_biases
from ipex_assist.serve.routes.conversations import AskedConversation, output_form, prepare_conversation
from ipex_assist.serve.routes.json_bodies import JsonRoute
from ipex_assist.serve.routes.other_methods import refuse_other_methods
from ipex_assist.serve.served_models import ServedModels
from ipex_assist.serve.streaming import GenerationResponse
from ipex_assist.serve.structured_output import json_schema
from ipex_assist.speculative.choosing.grammar import GrammarSpec


def _asked(body: ResponsesRequest, messages: list[dict[str, Any]]) -> AskedConversation:
    system = [{"role": "system", "content": body.instructions}] if body.instructions else []
    return AskedConversation(
        [*system, *messages],
        [tool.for_template() for tool in body.functions],
        body.choice_of_tools(),
        body.parallel_tool_calls,
        _grammar(body.text),
        "tools[{}].parameters",
        body.template_variables,
        body.budget,
        "input",
    )


def _grammar(text: TextConfig | None) -> GrammarSpec | None:
    match text.format if text is not None else None:
        case FlatSchema(schema_=schema):
            return json_schema(schema, "text.format.schema")
        case JsonObject():
            return GrammarSpec("json_object", field="text.format")
    return None


def router(models: ServedModels) -> APIRouter:
    """The three routes, with their response store."""
    routes, kept = APIRouter(route_class=JsonRoute), ResponseStore()

    @routes.post("/v1/responses", response_model=ModelResponse, responses={**STREAM, **ERRORS})
    async def create_response(body: ResponsesRequest) -> Response:
        """Answer a text or a conversation, or continue from a stored response."""
        service = await models.open(body.model)
        service.check_task()
        check_biases(service, body)
        deadline = service.deadline()
        before: list[dict[str, Any]] = []
        if body.previous_response_id is not None:
            before = kept.find(body.previous_response_id, "previous_response_id").messages
        new = await service.in_thread(body.messages)
        turn, tokens, images = await prepare_conversation(service, lambda: _asked(body, [*before, *new]), deadline)
        room = service.most_new_tokens(len(tokens), body.max_output_tokens)
        options = body.generation_options(room, service.facts.sampling, body.wanted_logprobs)
        options = service.adapters.apply(options, body)

        def keep(response: dict[str, Any], answer: dict[str, Any]) -> None:
            if body.store is not False:
                kept.keep(StoredResponse(response, [*before, *new, answer]))

        requests = [GenerationRequest(tokens, options, turn.grammar, images=tuple(images))]
        texts = ChoiceTexts(requests, len(tokens), None if options.logprobs is None else service.token_texts)
        form = await service.in_thread(output_form, service.tokenizer, turn, tokens)
        writer = ResponseWriter(service, texts, body, options, keep, form)
        return GenerationResponse(service, requests, writer, deadline=deadline, stream=bool(body.stream))

    @routes.get("/v1/responses/{response_id}", response_model=ModelResponse, responses=responses(401, 404))
    async def retrieve_response(response_id: str) -> Response:
        """A stored response."""
        return Response(compact(kept.find(response_id).response), media_type="application/json")

    @routes.delete("/v1/responses/{response_id}", responses=responses(401, 404))
    async def delete_response(response_id: str) -> Deleted:
        """Delete a stored response."""
        kept.forget(response_id)
        return Deleted(id=response_id)

    refuse_other_methods(routes, "/v1/responses/{response_id}", "DELETE", "GET")
    return routes
