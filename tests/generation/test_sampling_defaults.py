"""The sampling options of generation_config.json are defaults everywhere but in measurements; what is said wins."""

from __future__ import annotations

import json
import logging
import math
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_files
import gguf
import pytest
from batch_runs import REAL, by_id, wait_for, write_prompts
from batch_runs import run as run_batch
from command_runs import command, last_json, run_all
from conftest import HAS_SERVE

import ipex_assist
from ipex_assist import UsageError
from ipex_assist.bench.command import main as bench
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.generation.sampling_defaults import sampling_defaults
from ipex_assist.generation.text_model import TextModel

pytestmark = pytest.mark.one_stack

SAID = {"do_sample": True, "temperature": 0.7, "top_k": 9, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.3}
FLAGS = ["--executor", "torch", "--precision", "fp32", "--offline", "--no-assisted"]
PROMPT = [5, 17, 40]
LENGTH = 12


def with_defaults(folder: Path, **fields: Any) -> Path:
    """A tiny model whose generation_config.json has these fields beside those that are there."""
    checkpoint_files.save(checkpoint_files.tiny_model("llama"), folder)
    path = folder / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_defaults(tmp_path_factory.mktemp("defaults") / "tiny", **SAID)


def load(folder: Path | str, **more: Any) -> TextModel:
    return ipex_assist.load(folder, None, precision="fp32", executor="torch", **more)


@pytest.fixture(scope="module")
def plain(folder: Path) -> TextModel:
    """The model without its file's defaults."""
    return load(folder, generation_config="none")


def tokens(model: TextModel, prompt: Any = PROMPT, **options: Any) -> list[int]:
    return model.generate(prompt, max_new_tokens=LENGTH, ignore_eos=True, **options).tokens


def test_python(folder: Path, plain: TextModel, caplog: pytest.LogCaptureFixture) -> None:
    """Said with its default value or unsaid was the same to the wire; now a value that is said always wins."""
    with caplog.at_level(logging.INFO, "ipex_assist"):
        model = load(folder)
    assert "temperature 0.7" in caplog.text
    assert "--generation-config none" in caplog.text
    assert tokens(model, seed=3) == tokens(plain, seed=3, **SAID) != tokens(plain, seed=3)
    assert tokens(model, do_sample=False) == tokens(plain, repetition_penalty=1.3)
    transformers_default = {"temperature": 1.0, "top_k": 50, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert tokens(model, seed=3, **transformers_default) == tokens(plain, seed=3, do_sample=True)
    assert tokens(model, temperature=0, repetition_penalty=1) == tokens(plain)


def test_a_folder_of_another_file(folder: Path, plain: TextModel, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 1.5}')
    assert tokens(load(folder, generation_config=tmp_path)) == tokens(plain, repetition_penalty=1.5)
    with pytest.raises(UsageError, match=r"there is no generation_config\.json; give auto, none, or a folder"):
        load(folder, generation_config=tmp_path / "nowhere")


def test_values_that_cannot_be_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A recommendation is no reason for a model not to load; null, and what transformers does besides, likewise."""
    wrong = {"temperature": "hot", "top_k": -1, "top_p": None, "do_sample": True, "num_beams": 4, "typical_p": 1.0}
    checkpoint = open_checkpoint(str(with_defaults(tmp_path / "tiny", **wrong)), offline=True)
    with caplog.at_level(logging.INFO, "ipex_assist"):
        assert sampling_defaults(checkpoint, "auto") == {"do_sample": True}
    for words in ("temperature hot", "top_k -1", "left out", "asks for with num_beams"):
        assert words in caplog.text
    assert "typical_p" not in caplog.text


def test_gguf(tmp_path: Path) -> None:
    """llama.cpp samples by general.sampling, which its converter takes from generation_config.json."""
    path = tmp_path / "tiny.gguf"
    metadata: dict[str, float | str | bool] = {"general.sampling.temp": 0.5, "general.sampling.top_k": 7}
    metadata |= {"general.sampling.penalty_repeat": 1.25}
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), path, metadata=metadata)
    found = sampling_defaults(open_checkpoint(str(path), offline=True), "auto")
    assert found == {"do_sample": True, "temperature": 0.5, "top_k": 7, "repetition_penalty": 1.25}
    checkpoint_files.write_gguf(
        checkpoint_files.tiny_model("llama"), path, gguf.GGMLQuantizationType.F32, {"general.sampling.temp": 0.0}
    )
    assert sampling_defaults(open_checkpoint(str(path), offline=True), "auto") == {"temperature": 0.0}


def test_commands(folder: Path, plain: TextModel, tmp_path: Path) -> None:
    """A prompt and a batch; -v says what is taken; a temperature of the user's has an effect without --do-sample."""
    flags = ["-m", str(folder), *FLAGS, "--max-new-tokens", str(LENGTH), "--ignore-eos"]
    one = [*flags, "-p", "the quick", "--raw", "--json", "-v", "--no-launch"]
    usual, other, none, hot = run_all(
        [*one, "--seed", "3"],
        [*one, "--no-do-sample"],
        [*one, "--generation-config", "none"],
        [*one, "--seed", "3", "--temperature", "2"],
    )
    for done in (usual, other, none, hot):
        assert done.returncode == 0, done.stderr
        assert "no effect" not in done.stderr
    prompt = plain.encode("the quick")
    assert last_json(usual.stdout)["tokens"] == tokens(plain, prompt, seed=3, **SAID)
    assert last_json(hot.stdout)["tokens"] == tokens(plain, prompt, seed=3, **SAID | {"temperature": 2.0})
    assert last_json(other.stdout)["tokens"] == tokens(plain, prompt, repetition_penalty=1.3)
    assert last_json(none.stdout)["tokens"] == tokens(plain, prompt)
    assert "top_k 9" in usual.stderr
    assert "top_k" not in none.stderr

    lines = [{"id": "a", "prompt": "the quick", "seed": 3}, {"id": "b", "prompt": "the quick", "do_sample": False}]
    prompts, out = write_prompts(tmp_path / "prompts.jsonl", lines), tmp_path / "out.jsonl"
    code, said = run_batch(REAL, prompts, "-o", out, *flags, "--no-launch", "--instances", 1)
    assert code == 0, said
    found = by_id(out)
    assert found["a"]["tokens"] == tokens(plain, prompt, seed=3, **SAID)
    assert found["b"]["tokens"] == tokens(plain, prompt, repetition_penalty=1.3)


def test_bench_is_greedy_unless_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of two models are compared: penalties, which cost time, are in neither; the report says what was."""
    flags = ["-m", str(folder), *FLAGS, "--no-launch", "--json", "--repeats", "1", "--max-new-tokens", "4"]
    flags += ["--prompt-tokens", "6"]
    assert bench(flags) == 0
    assert json.loads(capsys.readouterr().out)["sampling_defaults"] == {}
    assert bench([*flags, "--generation-config", "auto"]) == 0
    assert json.loads(capsys.readouterr().out)["sampling_defaults"] == SAID


if HAS_SERVE:
    import httpx
    from native_server import NativeServer

    @pytest.fixture(scope="module")
    def server(folder: Path) -> Iterator[NativeServer]:
        running = NativeServer("-m", folder)
        try:
            wait_for(lambda: httpx.get(f"{running.url}/ready", timeout=60).status_code == 200)
            yield running
        finally:
            running.end()

    def test_the_servers_apis(folder: Path, server: NativeServer) -> None:
        """As vLLM: what a request leaves open is the model's, then OpenAI's; temperature 0 stays greedy."""
        model = ipex_assist.load(folder, None, precision="fp32", executor="native", generation_config="none")
        client = httpx.Client(base_url=server.url, timeout=60)
        assert client.get("/v1/models").json()["data"][0]["sampling"] == SAID

        def completion(**fields: Any) -> str:
            body = {"prompt": "the quick", "max_tokens": LENGTH, "ignore_eos": True, "seed": 3, **fields}
            return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

        options = {"max_new_tokens": LENGTH, "ignore_eos": True, "seed": 3}
        assert completion() == model.generate("the quick", **options, **SAID).text
        hot = SAID | {"temperature": 2.0, "top_k": 0}
        assert completion(temperature=2, top_k=0) == model.generate("the quick", **options, **hot).text
        greedy = model.generate("the quick", max_new_tokens=LENGTH, ignore_eos=True, repetition_penalty=1.3)
        assert completion(temperature=0) == greedy.text

        turn = [{"role": "user", "content": "the quick"}]
        first = math.inf
        for path, body in (
            ("/v1/chat/completions", {"messages": turn, "max_tokens": LENGTH, "seed": 3}),
            ("/v1/responses", {"input": "the quick", "max_output_tokens": LENGTH}),
            ("/v1/messages", {"model": "claude-x", "messages": turn, "max_tokens": LENGTH}),
        ):
            answer = client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            first = answer.json().get("temperature", first)
            if path.endswith("completions"):
                expected = model.generate(turn, max_new_tokens=LENGTH, seed=3, **SAID)
                assert answer.json()["choices"][0]["message"]["content"] == expected.text
        assert first == 0.7  # what /v1/responses says that it did

    def test_a_chat_with_a_server_samples_as_one_without(folder: Path, server: NativeServer) -> None:
        flags = ["--max-new-tokens", "8", "--seed", "3", "-q"]
        loaded = ["-m", str(folder), "--executor", "native", "--precision", "fp32", "--no-assisted", "--no-launch"]
        answers = [
            subprocess.run(
                command("chat", *way, *flags), input="the fox\n", capture_output=True, text=True, timeout=120
            )
            for way in (["--url", server.url], loaded)
        ]
        assert [done.returncode for done in answers] == [0, 0], answers
        assert answers[0].stdout == answers[1].stdout
