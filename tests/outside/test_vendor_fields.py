"""Fields that the vendors' own clients can send are in the table of fields: a new one is not dropped unseen."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from ipex_assist.serve.protocol.fields import FIELDS

pytestmark = [pytest.mark.outside, pytest.mark.one_stack]

REQUESTS = {
    "/v1/chat/completions": ("openai.types.chat.completion_create_params", "CompletionCreateParamsBase"),
    "/v1/completions": ("openai.types.completion_create_params", "CompletionCreateParamsBase"),
    "/v1/responses": ("openai.types.responses.response_create_params", "ResponseCreateParamsBase"),
    "/v1/embeddings": ("openai.types.embedding_create_params", "EmbeddingCreateParams"),
    "/v1/messages": ("anthropic.types.message_create_params", "MessageCreateParamsBase"),
}
BETA = ("anthropic.types.beta.message_create_params", "MessageCreateParamsBase")
HEADERS = {"betas", "user_profile_id", "workspace_id"}  # of Anthropic's client, which sends them as such


def fields(module: str, name: str) -> set[str]:
    """What a client's request has, but for what it sends as headers."""
    pytest.importorskip(module.partition(".")[0])
    found: Any = getattr(importlib.import_module(module), name)
    return set(found.__annotations__) - HEADERS


@pytest.mark.parametrize(("path", "sent"), [*REQUESTS.items(), ("/v1/messages", BETA)], ids=str)
def test_every_field_has_a_treatment(path: str, sent: tuple[str, str]) -> None:
    known = {name for names in FIELDS[path].values() for name in names.split()}
    assert fields(*sent) - known == set()
