"""POST /v1/embeddings and /v1/rerank, by openai's own client and as other clients write them."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import embedding_folders as folders
import httpx
import numpy as np
import pytest
from embedding_backend import EmbeddingBackend
from fake_backend import FakeBackend, serving

from ipex_assist.embedding.facts import TextEncoder
from ipex_assist.embedding.loading import load_embedder
from ipex_assist.embedding.model import EmbeddingModel
from ipex_assist.generation.load_options import LoadOptions

openai = pytest.importorskip("openai")

pytestmark = pytest.mark.one_stack

TEXTS = list(folders.TEXTS)


def load(folder: Path, task: str, matryoshka: bool = False) -> EmbeddingModel:
    options = LoadOptions.of(target=str(folder), precision="fp32", kv_memory=64 << 20, cache_packed=False, offline=True)
    return load_embedder(options, task, matryoshka=matryoshka)


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingModel:
    folder = folders.write_embedder(tmp_path_factory.mktemp("embedder") / "model", "last token")
    return load(folder, "embed")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> EmbeddingModel:
    folder = tmp_path_factory.mktemp("reranker") / "model"
    return load(folders.write_model(folder, "bert", "ForSequenceClassification", pad_token_id=0), "rerank")


@contextmanager
def client(model: EmbeddingModel, **options: Any) -> Iterator[httpx.Client]:
    with serving(EmbeddingBackend(model), **options) as http:
        yield http


def expected(model: EmbeddingModel, prompt: str = "") -> list[np.ndarray]:
    encoder = TextEncoder(model.tokenizer, model.facts)
    return model.embed([encoder.text(text, prompt) for text in TEXTS])


def test_openais_client_reads_vectors(embedder: EmbeddingModel) -> None:
    """Vectors in another order, or of one text twice; base64, which this client asks for, of another type."""
    with client(embedder) as http, openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none") as api:
        for form in ("float", "base64", openai.NOT_GIVEN):
            answer = api.embeddings.create(model="tiny", input=TEXTS, encoding_format=form)
            assert [each.index for each in answer.data] == list(range(len(TEXTS)))
            found = [each.embedding for each in answer.data]
            if form == "base64":
                found = [np.frombuffer(base64.b64decode(str(each)), "<f4") for each in found]
            assert np.array_equal(np.array(found, np.float32), expected(embedder))
        one = api.embeddings.create(model="tiny", input=TEXTS[0])
        tokens = list(embedder.tokenizer(TEXTS[0])["input_ids"])
        assert one.usage.prompt_tokens == one.usage.total_tokens == len(tokens)
        for given in (tokens, [tokens]):
            assert api.embeddings.create(model="tiny", input=given).data[0].embedding == one.data[0].embedding
        asked = api.embeddings.create(model="tiny", input=TEXTS, extra_body={"prompt_name": "query"})
        assert np.array_equal([each.embedding for each in asked.data], expected(embedder, folders.PROMPT))
        with pytest.raises(openai.NotFoundError, match="no model 'other'"):
            api.embeddings.create(model="other", input="a")


def test_many_texts_are_one_answer(embedder: EmbeddingModel) -> None:
    """Texts that go to the engines in several parts come back in the order of the request."""
    texts = [f"{number} foxes jump" for number in range(300)]
    with client(embedder) as http:
        data = http.post("/v1/embeddings", json={"input": texts}).json()["data"]
        ends = [http.post("/v1/embeddings", json={"input": texts[place]}).json()["data"][0] for place in (0, 171, 299)]
        assert [data[place]["embedding"] for place in (0, 171, 299)] == [each["embedding"] for each in ends]
        said = http.get("/metrics").text
    assert "vllm:request_prompt_tokens_count" in said
    total = next(line for line in said.splitlines() if line.startswith("vllm:prompt_tokens_total"))
    encoded = sum(len(embedder.tokenizer(text)["input_ids"]) for text in [*texts, texts[0], texts[171], texts[299]])
    assert float(total.split()[-1]) == encoded


def test_shorter_vectors_where_the_model_has_them(tmp_path: Path, embedder: EmbeddingModel) -> None:
    """The first numbers of a vector that was not trained for it; those of one that was, but not at length 1."""
    folder = folders.write_embedder(tmp_path / "model", "last token")
    with client(load(folder, "embed", matryoshka=True)) as http:
        body = {"input": TEXTS, "dimensions": 8}
        for form in ("float", "base64"):
            data = http.post("/v1/embeddings", json=body | {"encoding_format": form}).json()["data"]
            found = [each["embedding"] for each in data]
            if form == "base64":
                found = [np.frombuffer(base64.b64decode(each), "<f4") for each in found]
            wanted = [vector[:8] / np.linalg.norm(vector[:8]) for vector in expected(embedder)]
            np.testing.assert_allclose(found, wanted, atol=1e-6)
        assert refused(http, {"input": "a", "dimensions": 33}) == (400, "dimensions")
    with client(embedder) as http:
        assert refused(http, body) == (400, "dimensions")
        assert http.post("/v1/embeddings", json=body | {"dimensions": folders.HIDDEN}).status_code == 200


def refused(http: httpx.Client, body: Any, path: str = "/v1/embeddings") -> tuple[int, str | None]:
    """The status and the parameter of an error in OpenAI's form."""
    answer = http.post(path, json=body)
    error = answer.json()["error"]
    assert error["message"]
    assert error["type"]
    return answer.status_code, error["param"]


def test_wrong_requests_are_refused(embedder: EmbeddingModel) -> None:
    """A traceback, a text that is cut in silence, work for hours that one request asks for."""
    with client(embedder, max_prompt=100) as http:
        for body, wanted in (
            ({"input": []}, 400),
            ({"input": ""}, 400),
            ({"input": ["a", ""]}, 400),
            ({"input": [["a"]]}, 400),
            ({"input": ["a"] * 2049}, 400),
            ({"input": [[999]]}, 400),
            ({"input": [-1]}, 400),
            ({"input": "a", "encoding_format": "int8"}, 400),
            ({"input": "a", "dimensions": 0}, 400),
            ({"input": "a", "prompt_name": "passage"}, 400),
            ({"input": ["a", "fox " * 200]}, 400),
            ({"input": "fox " * 200_000}, 400),
            ({"input": [list(range(101))]}, 400),
        ):
            assert refused(http, body)[0] == wanted, body
        cut = {"input": "fox " * 200, "truncate_prompt_tokens": -1}
        assert http.post("/v1/embeddings", json=cut).json()["usage"]["prompt_tokens"] == 100
        assert http.post("/v1/embeddings", json=cut | {"truncate_prompt_tokens": 7}).json()["usage"] == {
            "prompt_tokens": 7,
            "total_tokens": 7,
        }


def test_a_model_does_what_it_is_for(embedder: EmbeddingModel, reranker: EmbeddingModel) -> None:
    """An embedding model that chats by the texts of its padding; a chat model whose vectors nobody trained."""
    pair = {"query": "a", "documents": ["b"]}
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4}
    with client(embedder) as http:
        assert "/v1/embeddings" in http.post("/v1/rerank", json=pair).json()["error"]["message"]
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/completions", {"prompt": "a"}),
            ("/v1/responses", {"input": "a"}),
            ("/v1/messages", chat),
        ):
            answer = http.post(path, json={"model": "tiny", **body})
            assert (answer.status_code, "writes no text here" in answer.text) == (400, True), path
    with client(reranker) as http:
        assert "/v1/rerank" in http.post("/v1/embeddings", json={"input": "a"}).json()["error"]["message"]
    with serving(FakeBackend()) as http:
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/rerank", pair)):
            assert "--task embed" in http.post(path, json=body).json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_by_relevance(path: str, reranker: EmbeddingModel) -> None:
    """An index of the sorted list, the least relevant first, documents that nobody asked for."""
    encoder = TextEncoder(reranker.tokenizer, reranker.facts)
    scores = np.ravel(reranker.embed([encoder.pair(folders.QUERY, text) for text in TEXTS]))
    documents: list[Any] = [TEXTS[0], {"text": TEXTS[1]}, *TEXTS[2:]]
    body = {"query": folders.QUERY, "documents": documents}
    with client(reranker) as http:
        answer = http.post(path, json=body).json()
        assert [each["index"] for each in answer["results"]] == list(np.argsort(-scores))
        for each in answer["results"]:
            assert each["relevance_score"] == pytest.approx(float(scores[each["index"]]), abs=1e-5)
            assert "document" not in each
        assert answer["usage"]["total_tokens"] == answer["usage"]["prompt_tokens"] > 0
        two = http.post(path, json=body | {"top_n": 2, "return_documents": True}).json()["results"]
        assert [(each["index"], each["document"]["text"]) for each in two] == [
            (each["index"], TEXTS[each["index"]]) for each in answer["results"][:2]
        ]
        assert refused(http, body | {"documents": []}, path)[0] == 400
        assert refused(http, body | {"instruction": "find"}, path)[0] == 400
        assert refused(http, body | {"documents": ["fox " * 300]}, path)[0] == 400
        cut = body | {"documents": ["fox " * 300], "truncate_prompt_tokens": -1}
        assert http.post(path, json=cut).json()["usage"]["prompt_tokens"] == reranker.facts.max_tokens


def test_who_goes_away_is_not_computed(embedder: EmbeddingModel) -> None:
    """Vectors that nobody reads any more, and that others wait for."""
    backend = EmbeddingBackend(embedder)
    backend.pace = 5.0  # after each pass, of which there are more than parts
    with serving(backend) as http:
        with pytest.raises(httpx.ReadTimeout):
            http.post("/v1/embeddings", json={"input": ["fox " * 30] * 200}, timeout=0.5)
        ends = time.monotonic() + 20
        while embedder.jobs and time.monotonic() < ends:
            time.sleep(0.02)
        assert backend.cancelled
        assert not embedder.jobs
        backend.pace = 0.0
        assert http.post("/v1/embeddings", json={"input": "a"}).status_code == 200


def test_the_api_is_described(embedder: EmbeddingModel) -> None:
    """Routes without a schema, or two of the same name."""
    with client(embedder) as http:
        paths = http.get("/openapi.json").json()["paths"]
    assert {"/v1/embeddings", "/v1/rerank", "/rerank", "/v2/rerank"} <= set(paths)
    names = [each["post"]["operationId"] for path, each in paths.items() if "post" in each]
    assert len(set(names)) == len(names)
