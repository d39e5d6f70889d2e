"""The methods that a path of several routes has none for: 405 with all that it allows."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from ipex_assist.serve.errors import ApiError

METHODS = frozenset({"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"})


def refuse_other_methods(routes: APIRouter, path: str, *allowed: str) -> None:
    """Answer 405 to methods other than `allowed`. With several routes, the 405 of each would allow its own alone."""

    @routes.api_route(path, methods=sorted(METHODS.difference(allowed)), include_in_schema=False)
    async def other_method() -> Response:
        raise ApiError(405, "Method Not Allowed", headers={"Allow": ", ".join(allowed)})
