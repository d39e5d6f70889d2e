"""JSON bodies: bounded before they are parsed, and parsed outside the event loop unless they are small."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import Request
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.responses import Response

from ipex_assist.serve.errors import ApiError, refused

SMALL = 16 << 10  # bytes of a body that is parsed in the event loop
MOST_OBJECTS = 1 << 16  # objects and lists of a body, each of which becomes one in Python
MOST_VALUES = 1 << 20  # values of a body, token ids of prompts among them
PIECE = 1 << 18  # bytes that are counted at a time; other threads may run between two pieces
_THREADS = ThreadPoolExecutor(2, thread_name_prefix="bodies")  # few: each holds the interpreter for a while


class JsonRoute(APIRoute):
    """A route whose one parameter `body`, if it has it, is a pydantic model or a union of them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler, which is given a body that is parsed and validated already."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        field = self.body_field.field_info
        parts = (field.annotation, *field.metadata)  # the second: how to tell the members of a union apart
        kind: Any = Annotated[parts] if field.metadata else field.annotation  # type: ignore[type-arg]
        form: TypeAdapter[Any] = TypeAdapter(kind)

        async def handler(request: Request) -> Response:
            return await handle(JsonRequest(request, form))

        return handler


class JsonRequest(Request):
    """A request whose `json` is the validated model, which FastAPI takes as it is."""

    def __init__(self, request: Request, form: TypeAdapter[Any]) -> None:
        super().__init__(request.scope, request.receive)
        self._model = form

    async def json(self) -> Any:
        """Raises ApiError (status 400) with the first reasons."""
        body = await self.body()
        if len(body) <= SMALL:
            return parse(self._model, body)
        return await asyncio.get_running_loop().run_in_executor(_THREADS, parse, self._model, body)


def parse(form: TypeAdapter[Any], body: bytes) -> Any:
    """The model of a JSON body. Raises ApiError (status 400).

    pydantic reads JSON without making Python objects of it before they are validated, so that lists beyond their
    limits cost little; what is nested deeper, or has no limit of its own, is bounded here.
    """
    objects, values = count_values(body)
    for count, most, kind in ((objects, MOST_OBJECTS, "JSON objects and lists"), (values, MOST_VALUES, "JSON values")):
        if count > most:
            raise ApiError(400, f"the body has {count:,} {kind}, and a request may have {most:,}", code="too_long")
    try:
        return form.validate_json(body)
    except ValidationError as error:
        raise refused(error) from None


def count_values(body: bytes) -> tuple[int, int]:
    """(objects and lists, all values) of a JSON text, by its brackets and commas; at least as many as there are.

    What texts contain counts as well as long as that is not too much, since that is faster.
    """
    found = _count(body)
    if found[0] <= MOST_OBJECTS and found[1] <= MOST_VALUES:
        return found
    objects = values = start = 0
    outside = True
    while start < len(body):
        end = start + PIECE
        while body[end - 1 : end] == b"\\":  # a backslash and what it escapes stay together
            end += 1
        parts = body[start:end].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        new = _count(b"".join(parts[0 if outside else 1 :: 2]))
        objects, values = objects + new[0], values + new[1]
        outside ^= len(parts) % 2 == 0
        start = end
    return objects, values


def _count(text: bytes) -> tuple[int, int]:
    objects = text.count(b"{") + text.count(b"[")
    return objects, objects + text.count(b",")
