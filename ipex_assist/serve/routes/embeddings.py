"""POST /v1/embeddings and /v1/rerank (also /rerank and /v2/rerank, where other servers and their clients have it)."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.responses import Response

from ipex_assist.embedding.facts import EmbeddingFacts, EncodedText, TextEncoder
from ipex_assist.embedding.jobs import EmbeddingInputs, in_jobs
from ipex_assist.embedding.task import EMBED, RERANK
from ipex_assist.env.errors import UsageError
from ipex_assist.serve.answers.embeddings import EmbeddingWriter, RerankWriter, VectorWriter
from ipex_assist.serve.answers.writer import compact
from ipex_assist.serve.backend import GenerationRequest
from ipex_assist.serve.errors import ApiError, prompt_too_long, responses
from ipex_assist.serve.protocol.embeddings import EmbeddingList, EmbeddingRequest, RerankRequest, RerankResponse
from ipex_assist.serve.routes.json_bodies import JsonRoute
from ipex_assist.serve.served_models import ServedModels
from ipex_assist.serve.service import Service
from ipex_assist.serve.streaming import GenerationResponse
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.tokenization.tokenizer import checked_ids

ERRORS = responses(400, 401, 404, 413, 429, 500, 503)
_PATHS = {EMBED: "/v1/embeddings", RERANK: "/v1/rerank"}


class VectorResponse(GenerationResponse):
    """Waits for all vectors; its body is written outside of the event loop, since numbers are many."""

    async def _whole(self) -> str:
        return await self._service.in_thread(lambda: compact(self._writer.whole()))


def facts_of(service: Service, task: str) -> EmbeddingFacts:
    """What the served model is. Raises 400 where it does something else."""
    service.check_task(writes=False)
    facts = service.facts.embedding
    assert facts is not None
    if facts.task != task:
        does = "scores documents" if facts.task == RERANK else "gives vectors"
        raise ApiError(
            400,
            f"{service.facts.name} {does}: ask {_PATHS[facts.task]}, or start with --task {task}",
            code="wrong_task",
        )
    return facts


class InputReader:
    """The texts of one request as token ids, of which none is longer than the model and its memory take."""

    def __init__(self, service: Service, facts: EmbeddingFacts, cut: int | None) -> None:
        """cut: tokens that are kept of a text; -1: as many as can be; None: longer texts are refused."""
        self._service, self._encoder = service, TextEncoder(service.tokenizer, facts)
        limits = [
            (facts.max_tokens, ""),
            (service.options.max_prompt, ", as this server is set up"),
            (service.memory_tokens(), ", by this server's memory for them"),
        ]
        known = [(limit, why) for limit, why in limits if limit is not None]
        self._limit: int | None = None
        self._why = ""
        if known:
            self._limit, self._why = min(known)
        self._most = cut
        if cut is not None:
            self._most = self._limit if cut == -1 else min(cut, self._limit or cut)

    def texts(self, inputs: Sequence[str] | Sequence[list[int]], prompt: str) -> list[EncodedText]:
        """Of an embedding request; ids have no prompt before them."""
        given: Sequence[str | list[int]] = inputs
        return [self._checked(self._text(each, prompt), place) for place, each in enumerate(given)]

    def pairs(self, query: str, documents: Sequence[str], instruction: str | None) -> list[EncodedText]:
        """Of a rerank request."""
        return [
            self._checked(self._encoder.pair(query, each, instruction, self._most), place)
            for place, each in enumerate(documents)
        ]

    def _text(self, given: str | list[int], prompt: str) -> EncodedText:
        if isinstance(given, str):
            if self._most is None:
                self._service.check_characters(len(given))
            return self._encoder.text(given, prompt, self._most)
        return EncodedText(given if self._most is None else given[: self._most])

    def _checked(self, text: EncodedText, place: int) -> EncodedText:
        count, limit = len(text.tokens), self._limit
        if limit is not None and count > limit:
            raise prompt_too_long(count, limit, f"{self._why} (text {place + 1}; truncate_prompt_tokens: -1 cuts it)")
        if text.skip >= count:
            raise ApiError(400, f"text {place + 1} is empty: it must have a token at least", param="input")
        facts = self._service.facts
        checked_ids(text.tokens, facts.vocab_size, self._service.tokenizer, facts.name)
        return text


def requests_of(texts: Sequence[EncodedText]) -> tuple[list[GenerationRequest], list[list[int]]]:
    """What the engines are asked for, several texts at a time, and the places of these texts."""
    jobs, requests = in_jobs(texts), []
    for job in jobs:
        tokens, inputs = EmbeddingInputs.of([texts[place] for place in job])
        requests.append(GenerationRequest(tokens, GenerationOptions(), inputs=inputs))
    return requests, jobs


def router(models: ServedModels) -> APIRouter:
    """All of them."""
    routes = APIRouter(route_class=JsonRoute, responses=ERRORS)

    def answer(service: Service, requests: list[GenerationRequest], writer: VectorWriter, deadline: float) -> Response:
        return VectorResponse(service, requests, writer, deadline=deadline, stream=False)

    @routes.post("/v1/embeddings", response_model=EmbeddingList)
    async def embeddings(body: EmbeddingRequest) -> Response:
        """A vector for each text."""
        service = await models.open(body.model)
        facts, deadline = facts_of(service, EMBED), service.deadline()
        try:
            prompt = facts.prompt(body.prompt_name)
        except UsageError as error:
            raise ApiError(400, str(error), param="prompt_name") from None
        try:
            facts.check_length(body.dimensions)
        except UsageError as error:
            raise ApiError(400, str(error), param="dimensions") from None

        def work() -> tuple[list[GenerationRequest], list[list[int]]]:
            return requests_of(InputReader(service, facts, body.truncate_prompt_tokens).texts(body.inputs, prompt))

        requests, jobs = await service.in_thread(work)
        dimensions = None if body.dimensions == facts.size else body.dimensions
        writer = EmbeddingWriter(service.facts.name, jobs, dimensions, body.encoding_format == "base64")
        return answer(service, requests, writer, deadline)

    async def rerank(body: RerankRequest) -> Response:
        """How relevant each document is to the query, the most relevant first."""
        service = await models.open(body.model)
        facts, deadline = facts_of(service, RERANK), service.deadline()
        documents = body.texts

        def work() -> tuple[list[GenerationRequest], list[list[int]]]:
            reader = InputReader(service, facts, body.truncate_prompt_tokens)
            return requests_of(reader.pairs(body.query, documents, body.instruction))

        requests, jobs = await service.in_thread(work)
        shown = documents if body.return_documents else None
        writer = RerankWriter(service.facts.name, jobs, body.top_n or len(documents), shown)
        return answer(service, requests, writer, deadline)

    for path in ("/v1/rerank", "/rerank", "/v2/rerank"):
        routes.post(path, response_model=RerankResponse, name=f"rerank {path}")(rerank)
    return routes
