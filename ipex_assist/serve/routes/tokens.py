"""POST /tokenize and /detokenize."""

from __future__ import annotations

from fastapi import APIRouter

from ipex_assist.serve.errors import responses
from ipex_assist.serve.pictured_messages import Address, pictured
from ipex_assist.serve.protocol.common import with_one_system
from ipex_assist.serve.protocol.tokenize import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeMessages,
    TokenizeRequest,
    TokenizeResponse,
    TokenizeText,
)
from ipex_assist.serve.routes.json_bodies import JsonRoute
from ipex_assist.serve.served_models import ServedModels
from ipex_assist.serve.service import Service
from ipex_assist.serve.tools import PreparedConversation, prepare
from ipex_assist.tokenization.tokenizer import checked_ids


def _prepared(service: Service, body: TokenizeMessages) -> tuple[PreparedConversation, list[Address]]:
    messages, images = pictured((message.for_template() for message in body.messages), service.facts.images)
    tools = [tool.model_dump(exclude_none=True) for tool in body.tools or ()]
    return prepare(service.tokenizer, with_one_system(messages), tools), images


def router(models: ServedModels) -> APIRouter:
    """Both routes."""
    routes = APIRouter(route_class=JsonRoute, responses=responses(400, 401, 404, 413, 500, 503))

    @routes.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> TokenizeResponse:
        """Token ids of a text, or of a conversation in the model's chat template."""
        service = await models.open(body.model)
        if isinstance(body, TokenizeText):
            tokens = await service.encode(body.prompt, body.add_special_tokens is not False)
        else:
            turn, images = await service.in_thread(_prepared, service, body)
            tokens = await service.encode_chat(turn.messages, turn.tools)
            tokens = await service.image_tokens(tokens, await service.contents(images), service.deadline())
        texts = None
        if body.return_token_strs:
            texts = await service.in_thread(lambda: [service.token_texts.text_of(token) for token in tokens])
        context = service.facts.context_length
        return TokenizeResponse(tokens=tokens, count=len(tokens), max_model_len=context, token_strs=texts)

    @routes.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> DetokenizeResponse:
        """The text of token ids."""
        service = await models.open(body.model)
        facts = service.facts
        tokens = await service.in_thread(checked_ids, body.tokens, facts.vocab_size, service.tokenizer, facts.name)
        return DetokenizeResponse(prompt=await service.decode(tokens))

    return routes
