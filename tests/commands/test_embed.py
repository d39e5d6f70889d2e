"""ipex-assist embed: vectors and scores of a file's texts, and what is wrong with it before anything is computed."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import embedding_folders as folders
import numpy as np
import pytest

from ipex_assist import cli

pytestmark = pytest.mark.one_stack

OPTIONS = ("--precision", "fp32", "--kv-memory", "64M", "--offline", "--no-launch", "-q", "--no-cache-packed")


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folders.write_embedder(tmp_path_factory.mktemp("embedder") / "model", "last token")


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reranker") / "model"
    return folders.write_model(folder, "bert", "ForSequenceClassification", pad_token_id=0)


def embed(model: Path, *argv: object) -> int:
    return cli.main(["embed", "-m", str(model), *map(str, argv), *OPTIONS])


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_vectors_of_a_file(
    embedder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty lines that become texts, an order of lengths, another vector in an array than in lines."""
    lines, jsonl, array = tmp_path / "texts.txt", tmp_path / "texts.jsonl", tmp_path / "vectors.npy"
    texts = ["the quick fox", "a", "jumps over the lazy dog"] * 30
    lines.write_text("\n\n".join(texts) + "\n")
    jsonl.write_text("\n".join(json.dumps(text if i % 2 else {"text": text}) for i, text in enumerate(texts)))
    assert embed(embedder, lines) == 0
    found = said(capsys)
    assert [each["index"] for each in found] == list(range(90))
    assert found[0]["embedding"] == found[87]["embedding"] != found[1]["embedding"]
    assert embed(embedder, jsonl, "-o", array) == 0
    vectors = np.load(array)
    assert vectors.dtype == np.float32
    assert np.array_equal(vectors, np.array([each["embedding"] for each in found], np.float32))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"the quick fox\n")))
    assert embed(embedder, "--dimensions", 4, "--matryoshka", "--prompt-name", "query") == 0
    [one] = said(capsys)
    assert np.linalg.norm(one["embedding"]) == pytest.approx(1, abs=1e-5)  # type: ignore[arg-type]
    assert len(one["embedding"]) == 4  # type: ignore[arg-type]


def test_documents_by_relevance(reranker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The least relevant first, or an index after sorting."""
    file = tmp_path / "documents.txt"
    file.write_text("\n".join(["a fox", "a café", "the lazy dog"]))
    assert embed(reranker, file, "--query", "the lazy dog") == 0
    found = said(capsys)
    scores = [each["relevance_score"] for each in found]
    assert scores == sorted(scores, reverse=True)
    assert {each["index"]: each["document"] for each in found} == {0: "a fox", 1: "a café", 2: "the lazy dog"}
    out = tmp_path / "ranked.jsonl"
    assert embed(reranker, file, "--query", "the lazy dog", "--top-n", 1, "-o", out) == 0
    assert [json.loads(line) for line in out.read_text().splitlines()] == found[:1]


def test_wrong_use_is_refused(
    embedder: Path, reranker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback, or an hour of work before the line that is wrong."""
    file, long, wrong = tmp_path / "a.txt", tmp_path / "b.txt", tmp_path / "c.jsonl"
    file.write_text("a fox\n")
    long.write_text("a fox\n" + "fox " * 400)
    wrong.write_text('"a"\n{"body": 1}\n')
    (tmp_path / "empty.txt").write_text("\n")
    writes = folders.write_model(tmp_path / "writes", "opt", "ForCausalLM")
    for model, argv, words in (
        (embedder, (tmp_path / "none.txt",), "no such file"),
        (embedder, (tmp_path / "empty.txt",), "has no texts"),
        (embedder, (wrong,), "line 2 has no text"),
        (embedder, (long,), "text 2: "),
        (embedder, (file, "--dimensions", 8), "--matryoshka"),
        (embedder, (file, "--prompt-name", "passage"), "no prompt named 'passage'"),
        (embedder, (file, "--query", "a"), "gives vectors"),
        (embedder, (file, "--top-n", 1), "go with --query"),
        (embedder, (file, "-o", tmp_path / "none" / "a.npy"), "no such folder"),
        (reranker, (file,), "is a reranker"),
        (writes, (file,), "--task embed"),
    ):
        assert embed(model, *argv) == 2, words
        assert words in capsys.readouterr().err
    assert embed(embedder, long, "--truncate") == 0
    assert embed(writes, file, "--task", "embed") == 0
    assert len(said(capsys)) == 3
