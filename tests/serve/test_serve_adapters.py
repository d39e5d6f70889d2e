"""Adapters over HTTP: which one a request gets, their list and their scales."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from msgspec import structs

pytestmark = pytest.mark.one_stack

HI = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
PATHS = {
    "/v1/chat/completions": HI,
    "/v1/completions": {"prompt": "Once", "max_tokens": 5},
    "/v1/messages": HI,
    "/v1/responses": {"input": "Hi", "max_output_tokens": 16},
}


@pytest.fixture
def adapters(client: httpx.Client, backend: Any) -> Any:
    """The server's backend, with two adapters. Scales are those of a new server afterwards."""
    backend._facts = structs.replace(backend._facts, adapters={"sql": "a/sql", "notes": "b/notes"})
    client.post("/lora-adapters", json=[{"id": 0, "scale": 1}, {"id": 1, "scale": 1}])
    return backend


def chosen(client: httpx.Client, backend: Any, path: str, **fields: Any) -> tuple[str | None, float]:
    answer = client.post(path, json={**PATHS[path], **fields})
    assert answer.status_code == 200, answer.text
    options = backend.requests[-1].options
    return options.lora, options.lora_scale


@pytest.mark.parametrize("path", PATHS)
def test_the_models_name_says_which(client: httpx.Client, adapters: Any, path: str) -> None:
    """Finds a form of the API in which an adapter's name is ignored or unknown."""
    assert chosen(client, adapters, path, model="sql") == ("sql", 1.0)
    assert chosen(client, adapters, path, model="notes") == ("notes", 1.0)
    assert chosen(client, adapters, path, model="tiny") == (None, 1.0)
    assert chosen(client, adapters, path) == (None, 1.0)
    answer = client.post(path, json={**PATHS[path], "model": "other"})
    assert answer.status_code == 404
    assert "there is no model 'other' here; there is tiny, sql, notes" in answer.text


def test_models_list_adapters(client: httpx.Client, adapters: Any) -> None:
    """As vLLM lists them: with their folders and the model that they are of."""
    listed = [(each["id"], each["root"], each["parent"]) for each in client.get("/v1/models").json()["data"]]
    assert listed == [("tiny", "folder/tiny", None), ("sql", "a/sql", "tiny"), ("notes", "b/notes", "tiny")]
    assert client.get("/v1/models/notes").json()["root"] == "b/notes"


def test_scales(client: httpx.Client, adapters: Any) -> None:
    """Finds scales of other adapters, and a request's own scale that comes after the server's."""
    path = "/v1/completions"
    assert client.post("/lora-adapters", json=[{"id": 1, "scale": 0.5}]).json() == {"success": True}
    assert client.get("/lora-adapters").json() == [
        {"id": 0, "path": "a/sql", "scale": 0.0},
        {"id": 1, "path": "b/notes", "scale": 0.5},
    ]
    assert chosen(client, adapters, path, model="notes") == ("notes", 0.5)
    assert chosen(client, adapters, path, model="sql") == (None, 1.0)  # a scale of 0 is the model itself
    assert chosen(client, adapters, path, lora=[{"id": 0, "scale": 2}]) == ("sql", 2.0)
    own = [{"id": 0, "scale": 0}, {"id": 1, "scale": -1}]
    assert chosen(client, adapters, path, model="sql", lora=own) == ("notes", -1.0)
    assert chosen(client, adapters, path, model="notes", lora=[]) == (None, 1.0)


@pytest.mark.parametrize(
    ("lora", "reason"),
    [
        ([{"id": 0, "scale": 1}, {"id": 1, "scale": 1}], "2 adapters at once, and a text has one here"),
        ([{"id": 2, "scale": 1}], "there is no adapter 2; there are 2"),
        ([{"id": -1, "scale": 1}], "greater than or equal to 0"),
        ([{"id": 0}], "required"),
    ],
)
def test_wrong_adapters(client: httpx.Client, adapters: Any, lora: list[dict[str, Any]], reason: str) -> None:
    """Finds a status 500, and an adapter that is applied in part."""
    answer = client.post("/v1/completions", json={**PATHS["/v1/completions"], "lora": lora})
    assert (answer.status_code, reason in answer.text) == (400, True), answer.text


def test_no_adapters(client: httpx.Client) -> None:
    assert client.get("/lora-adapters").json() == []
    assert client.post("/lora-adapters", json=[{"id": 0, "scale": 1}]).status_code == 400
