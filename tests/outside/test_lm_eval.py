"""lm-eval by local-completions against a server: what it makes of a text is what `ipex-assist eval` makes of it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import checkpoint_files
import pytest
from fake_backend import FakeBackend, serving

import ipex_assist
from ipex_assist.commands.perplexity import perplexity, windows
from ipex_assist.serve.backend import Finished, GenerationRequest, OutputChunk, TokenDelta

pytest.importorskip("lm_eval", reason="lm-eval is not installed: pip install lm_eval brings 40 packages, 380 MB")

pytestmark = pytest.mark.outside

TEXT = "The quick brown fox jumps over the lazy dog. " * 3 + "for i in range(10): print(i)"
TASK = {
    "task": "own_text",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "loglikelihood_rolling",
    "doc_to_text": "",
    "doc_to_target": "{{text}}",
    "metric_list": [{"metric": "byte_perplexity"}],
}


class Engine(FakeBackend):
    """A real model, which answers in one part."""

    def __init__(self, folder: Path) -> None:
        super().__init__(context_length=512)
        self.model = ipex_assist.load(str(folder), precision="fp32", executor="torch", calibrate=False)

    async def generate(
        self, request: GenerationRequest, *, timeout: float | None = None
    ) -> AsyncGenerator[OutputChunk | Finished, None]:
        result = await asyncio.to_thread(self.model.generate, request.tokens, request.options)
        pieces = [TokenDelta("", token, False) for token in result.tokens]
        yield OutputChunk(pieces, result.logprobs, 0, 0)
        yield Finished(result.as_dict())


def test_perplexity_of_a_text(tmp_path: Path) -> None:
    model = checkpoint_files.tiny_model("llama", max_position_embeddings=512)
    folder = checkpoint_files.save(model, tmp_path / "model")
    engine = Engine(folder)
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": TEXT}) + "\n")
    task = TASK | {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "text.jsonl")}}}
    (tmp_path / "own_text.yaml").write_text(json.dumps(task))  # JSON is YAML
    with serving(engine) as client:
        url = str(client.base_url).rstrip("/") + "/v1/completions"
        told = f"model=tiny,base_url={url},tokenizer_backend=huggingface,tokenizer={folder},max_length=500"
        command = [sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", told]
        command += ["--tasks", "own_text", "--include_path", str(tmp_path), "--output_path", str(tmp_path / "out")]
        done = subprocess.run(
            command, env={**os.environ, "HF_HOME": str(tmp_path), "HF_DATASETS_OFFLINE": "1"},
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    results = json.loads(next((tmp_path / "out").rglob("results*.json")).read_text())["results"]["own_text"]
    loss = math.log(results["byte_perplexity,none"]) * len(TEXT.encode())
    end = engine.model.tokenizer.eos_token_id  # before the first token, as lm-eval puts it
    tokens = [end, *engine.model.encode(TEXT)]
    ours = perplexity(engine.model.target, tokens, windows(len(tokens), 500, 500))
    assert ours.loss == pytest.approx(loss, rel=1e-5)
