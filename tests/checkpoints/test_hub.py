"""Models on the hub and in its cache: what is downloaded, what is found offline, and what is said when nothing is."""

from __future__ import annotations

import http.server
import json
import threading
from pathlib import Path

import checkpoint_files
import pytest
import torch

from ipex_assist.checkpoints import hub as hub_module
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.env.errors import IpexAssistError


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    return checkpoint_files.tiny_model("qwen2", tie_word_embeddings=False)


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty hub cache, and no leave to stay offline."""
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _cached(model: torch.nn.Module, cache: Path, name: str = "models--someone--tiny") -> Path:
    (cache / name / "refs").mkdir(parents=True)
    (cache / name / "refs" / "main").write_text("c0ffee")
    return checkpoint_files.save(model, cache / name / "snapshots" / "c0ffee")


def test_a_cached_model_opens_offline(model, cache):
    folder = _cached(model, cache)
    assert open_checkpoint("someone/tiny", offline=True).path == folder
    assert open_checkpoint("someone/tiny", revision="c0ffee", offline=True).path == folder


def test_the_former_name_of_tinyllama_is_accepted(model, cache):
    folder = _cached(model, cache, "models--TinyLlama--TinyLlama-1.1B-intermediate-step-715k-1.5T")
    assert open_checkpoint("PY007/TinyLlama-1.1B-intermediate-step-715k-1.5T", offline=True).path == folder


def test_an_uncached_model_offline_says_where_it_was_looked_for(cache, monkeypatch):
    pattern = r"someone/else is neither a folder here .*nor in the cache .*cache.*: run once without "
    with pytest.raises(IpexAssistError, match=pattern + r"--offline \(in Python, offline=True\)$"):
        open_checkpoint("someone/else", offline=True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(IpexAssistError, match=pattern + r"HF_HUB_OFFLINE$"):
        open_checkpoint("someone/else")
    with pytest.raises(IpexAssistError, match=pattern + r"--offline \(in Python, offline=True\) and HF_HUB_OFFLINE$"):
        open_checkpoint("someone/else", offline=True)


def test_an_incomplete_cached_copy_says_so(model, cache):
    (_cached(model, cache) / "model.safetensors").unlink()
    with pytest.raises(IpexAssistError, match=r"has no weights.*cached copy of someone/tiny is incomplete"):
        open_checkpoint("someone/tiny", offline=True)


_OPEN = """
import sys
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.checkpoints.packed_size import estimate_bytes
try:
    print("estimate", estimate_bytes(sys.argv[1], "bf16"))
    checkpoint = open_checkpoint(sys.argv[1])
    print("files", *sorted(p.name for p in checkpoint.path.iterdir()))
    print("tensors", len(dict(checkpoint.tensors())))
except IpexAssistError as error:
    print("error", error)
"""


class _Hub(http.server.BaseHTTPRequestHandler):
    """The two endpoints of the hub that a download uses, over a folder of models, on this machine."""

    root: Path

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _answer(self, body: bool) -> None:
        parts = self.path.split("?")[0].strip("/").split("/")
        if "gated" in self.path:
            return self._send(403, b"", {"X-Error-Code": "GatedRepo"}, body)
        api = parts[:2] == ["api", "models"]
        folder = self.root / "/".join(parts[2:4] if api else parts[:2])
        if not folder.is_dir():
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"}, body)
        if api:
            siblings = [{"rfilename": p.name, "size": p.stat().st_size} for p in folder.iterdir()]
            info = {"id": "/".join(parts[2:4]), "sha": "c0ffee" + "0" * 34, "siblings": siblings, "private": False}
            if "tree" in parts:
                files = [{"type": "file", "path": s["rfilename"], "size": s["size"], "oid": "0"} for s in siblings]
                return self._send(200, json.dumps(files).encode(), {}, body)
            return self._send(200, json.dumps(info | {"tags": [], "downloads": 0}).encode(), {}, body)
        file = folder / parts[-1]
        if not file.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
        headers = {"X-Repo-Commit": "c0ffee" + "0" * 34, "ETag": f'"{file.name}-{file.stat().st_size}"'}
        return self._send(200, file.read_bytes(), headers, body)

    def _send(self, status: int, content: bytes, headers: dict[str, str], body: bool) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """An empty hub on this machine; yields the folder to put models into."""
    root = tmp_path / "hub"
    root.mkdir()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Hub", (_Hub,), {"root": root}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}")
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    yield root
    server.shutdown()


def test_a_download_fetches_one_kind_of_weights(model, cache, hub):
    """Would catch patterns that fetch both safetensors and .bin (twice the disk), or miss shards or the tokenizer."""
    checkpoint_files.save_shards(model, hub / "someone" / "tiny", 2)
    checkpoint_files.save_shards(model, hub / "someone" / "tiny", 2, "bin")
    checkpoint_files.tiny_tokenizer().save_pretrained(hub / "someone" / "tiny")
    (hub / "someone" / "tiny" / "tf_model.h5").write_text("large")
    lines = dict(line.split(" ", 1) for line in checkpoint_files.run_python(_OPEN, "someone/tiny").splitlines())
    assert int(lines["tensors"]) == len(checkpoint_files.state(model))
    files = lines["files"].split()
    assert {"model.safetensors.index.json", "model-00002-of-00002.safetensors", "tokenizer.json"} <= set(files)
    assert not [name for name in files if name.startswith(("pytorch_model", "tf_model"))]
    assert int(lines["estimate"]) > 0


def test_a_download_takes_bin_where_there_is_nothing_else(model, cache, hub):
    checkpoint_files.save_shards(model, hub / "someone" / "tiny", 2, "bin")
    assert f"tensors {len(checkpoint_files.state(model))}" in checkpoint_files.run_python(_OPEN, "someone/tiny")


def test_hub_answers_become_messages(model, cache, hub):
    assert "error someone/nothing: no such model at http://127.0.0.1" in checkpoint_files.run_python(
        _OPEN, "someone/nothing"
    )
    assert "error gated/model is gated" in checkpoint_files.run_python(_OPEN, "gated/model")
    (hub / "someone" / "ggufs").mkdir(parents=True)
    (hub / "someone" / "ggufs" / "a.Q4_0.gguf").write_text("")
    assert "it holds a.Q4_0.gguf. Of a GGUF repository, download one file" in checkpoint_files.run_python(
        _OPEN, "someone/ggufs"
    )


def test_no_network(cache, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    output = checkpoint_files.run_python(_OPEN, "someone/tiny")
    assert "estimate None" in output
    assert "nor in the cache" in output
    assert "the hub cannot be reached (" in output
    assert "run `ipex-assist pull someone/tiny` where there is a network" in output


def test_estimate_of_an_incomplete_copy_asks_the_hub(model, cache, monkeypatch):
    (_cached(model, cache) / "model.safetensors").unlink()
    monkeypatch.setattr(hub_module, "parameters_on_hub", lambda *_: 1000)
    assert estimate_bytes("someone/tiny", "int8") == 1000
