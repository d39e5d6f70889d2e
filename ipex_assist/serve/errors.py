"""Errors in OpenAI's format, or Anthropic's, with their HTTP status; no traceback reaches a client."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.serve.backend import Busy, Failed, InvalidField, NotReady

log = logging.getLogger("ipex_assist")

RETRY_SECONDS = 5  # Retry-After of a 503 without an estimate
# Field names in a pydantic location, which also contains the types it tried.
_FIELD = re.compile(r"(?!(?:body|str|int|bool|float)$)[a-z_]+")
MOST_REASONS = 3  # reported for one body
MESSAGES = "/v1/messages"  # of Anthropic's API, whose clients read its own form of errors
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}


_ANTHROPIC_TYPES = {
    **_TYPES,
    413: "request_too_large",
    503: "overloaded_error",
}


# By the field that is not offered: what tells Anthropic's client to do without it, by sending all messages itself.
_DETAILS = {"thread": {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}}


class ErrorBody(BaseModel):
    """OpenAI's error object."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    """The body of every response with status 400 or above."""

    error: ErrorBody


class AnthropicError(BaseModel):
    """Anthropic's error object."""

    type: str
    message: str
    details: dict[str, Any] | None = None


class AnthropicErrorResponse(BaseModel):
    """The body of every response of /v1/messages with status 400 or above."""

    type: str
    error: AnthropicError


class ApiError(HTTPException):
    """An error with its HTTP status. param: the invalid field. code: machine-readable. anthropic: the message in the
    words of Anthropic's API, where clients look for them."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
        anthropic: str | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.message, self.param, self.code, self.anthropic = message, param, code, anthropic or message

    def body(self) -> dict[str, Any]:
        """The response body in OpenAI's format."""
        kind = _TYPES.get(self.status_code, "invalid_request_error" if self.status_code < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def anthropic_body(self) -> dict[str, Any]:
        """The response body in Anthropic's format."""
        kind = _ANTHROPIC_TYPES.get(
            self.status_code, "invalid_request_error" if self.status_code < 500 else "api_error"
        )
        details = {"details": _DETAILS[self.param]} if self.param in _DETAILS else {}
        return {"type": "error", "error": {"type": kind, "message": self.anthropic, **details}}

    def response(self, path: str = "") -> Response:
        """The response, as ASCII JSON, which can quote invalid Unicode of a request. path: of the request."""
        body = self.anthropic_body() if MESSAGES in path else self.body()
        return Response(json.dumps(body), self.status_code, self.headers, media_type="application/json")


def prompt_too_long(count: int, limit: int, reason: str = "", *, least: bool = False) -> ApiError:
    """400 in the words by which clients know that they must shorten a conversation, as agents do by themselves.

    count, limit: tokens of the prompt, and how many it may have. least: whether it has so many at least.
    """
    few = "at least " if least else ""
    return ApiError(
        400,
        f"This model's maximum context length is {limit} tokens{reason}. However, your prompt has {few}{count} tokens: "
        f"shorten it by at least {count - limit}",
        code="context_length_exceeded",
        anthropic=f"prompt is too long: {count} tokens > {limit} maximum{reason}",
    )


def responses(*statuses: int, model: type[BaseModel] = ErrorResponse) -> dict[int | str, dict[str, Any]]:
    """OpenAPI descriptions of these statuses, for a route. model: of their bodies."""
    meanings = {
        400: "The request is wrong; the message says where",
        401: "There is no API key, or a wrong one",
        404: "There is no such model, or nothing of that name",
        413: "The body is too long; the message has the numbers",
        429: "The queue is full; Retry-After says when to come back",
        500: "The request failed",
        503: "The server is loading, about to end, or too slow for the time limit",
    }
    return {status: {"model": model, "description": meanings[status]} for status in statuses}


def api_error(error: BaseException) -> ApiError:
    """Convert any exception for the client; unexpected ones are logged, and reported without details."""
    match error:
        case ApiError():
            return error
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), headers=dict(error.headers or {}))
        case Busy():
            wait = {"Retry-After": str(max(1, math.ceil(error.retry_after)))}
            return ApiError(429, str(error), code="queue_full", headers=wait)
        case NotReady():
            return ApiError(503, str(error), code="not_ready", headers={"Retry-After": str(RETRY_SECONDS)})
        case Failed():
            return ApiError(503 if error.again else 500, str(error), code="failed")
        case TimeoutError() | asyncio.TimeoutError():  # different classes before Python 3.11
            return ApiError(503, str(error) or "the request took longer than the server allows", code="timeout")
        case InvalidField():
            return ApiError(400, str(error), param=error.param)
        case UsageError():
            return ApiError(400, str(error))
        case IpexAssistError():
            return ApiError(500, str(error))
    log.error("a request failed: %s: %s", type(error).__name__, error, exc_info=error)
    return ApiError(500, f"the server failed by {type(error).__name__}; its log says more", code="internal_error")


def refused(error: RequestValidationError | ValidationError) -> ApiError:
    """400 with the first validation errors, each with its location in the body."""
    found: dict[tuple[str, str], None] = {}  # deduplicated, as pydantic reports each type it tried
    told = error.errors()
    too_long = [each for each in told if each["type"] == "too_long"]  # beside which what else it might be says little
    for each in (too_long or told)[:MOST_REASONS]:
        place = ".".join(str(part) for part in each["loc"] if isinstance(part, int) or _FIELD.fullmatch(part))
        reason, facts = str(each["msg"]).removeprefix("Value error, "), each.get("ctx", {})
        if each["type"] == "json_invalid":
            place, reason = "", f"the body is no JSON: {facts.get('error', reason)}"
        elif each["type"] == "too_long":
            reason = f"has {facts['actual_length']:,} items, and may have {facts['max_length']:,}"
        elif each["loc"] in ((), ("body",)):
            place, reason = "", "the body must be a JSON object, sent with Content-Type: application/json"
        found[place, reason] = None
    return ApiError(
        400,
        "; ".join(f"{place}: {reason}" if place else reason for place, reason in found),
        param=next(iter(found))[0] or None,
    )


def add_error_handlers(app: FastAPI) -> None:
    """Install handlers that answer all errors in OpenAI's format."""

    async def on_invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return refused(error).response(request.url.path)

    async def on_error(request: Request, error: Exception) -> Response:
        return api_error(error).response(request.url.path)

    app.add_exception_handler(RequestValidationError, on_invalid)
    for kind in (HTTPException, Busy, NotReady, Failed, TimeoutError, asyncio.TimeoutError, IpexAssistError):
        app.add_exception_handler(kind, on_error)
    app.add_exception_handler(Exception, on_error)
