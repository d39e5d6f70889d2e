"""Many models in one server: texts are right whichever are loaded, and memory stays within its limit."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import checkpoint_files
import httpx
import pytest
from batch_runs import children
from conftest import HAS_NATIVE
from native_server import KV_MEMORY, NativeServer

import ipex_assist
from ipex_assist.env.errors import UsageError
from ipex_assist.env.memory import resident_bytes
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.serve.arguments import parse
from ipex_assist.serve.model_options import FOREVER, ManyModelsOptions
from ipex_assist.serve.model_sources import ModelSource, read_source, read_sources
from ipex_assist.speculative.options import GenerationOptions
from ipex_assist.workers.capacity import InstanceNeed

pytestmark = pytest.mark.one_stack

NAMES = ("ann", "bob", "cat")
PROMPTS = [[5 + i, 17, 40 + i] for i in range(6)]
TOKENS = 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("models")
    for seed, name in enumerate(NAMES):
        checkpoint_files.save(checkpoint_files.tiny_model("llama", seed=seed), made / name)
    return made


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[tuple[str, int], str]:
    """Text by model and prompt, as the model writes it alone."""
    options = GenerationOptions(max_new_tokens=TOKENS, ignore_eos=True, do_sample=False)
    texts = {}
    for name in NAMES:
        model = ipex_assist.load(str(folder / name), "none", precision="fp32", executor="native", offline=True)
        texts |= {(name, i): model.generate(prompt, options).text for i, prompt in enumerate(PROMPTS)}
    assert len(set(texts.values())) > len(PROMPTS)  # the models differ
    return texts


@pytest.fixture(scope="module")
def memory_for_two(folder: Path) -> int:
    load = LoadOptions.of(target=str(folder / "ann"), assistant="none", precision="fp32", executor="native",
                          offline=True, kv_memory=KV_MEMORY)  # fmt: skip
    need = InstanceNeed.of(load, 1024, (1024,) * 4).total
    assert need is not None
    return need * 5 // 2


@pytest.fixture
def servers() -> Iterator[list[NativeServer]]:
    made: list[NativeServer] = []
    yield made
    for server in made:
        server.process.kill()
        server.process.communicate()


def asked(name: str, prompt: int) -> dict[str, Any]:
    body = {"model": name, "prompt": PROMPTS[prompt], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return {"url": "/v1/completions", "json": body}


async def _load_at_random(
    server: NativeServer, expected: dict[tuple[str, int], str], count: int, seed: int = 1
) -> list[tuple[int, int]]:
    """Ask `count` times at random and check texts; the most resident bytes in the first third, and in the last: of the
    server with its engines, and of the server alone."""
    clients = 8 if count < 100 else 32
    choose, order = random.Random(seed), iter(range(count))
    loaded_most, resident = 0, [(0, 0), (0, 0), (0, 0)]
    async with httpx.AsyncClient(base_url=server.url, timeout=300) as client:

        async def one() -> None:
            nonlocal loaded_most
            for number in order:
                name, prompt = choose.choice(NAMES), choose.randrange(len(PROMPTS))
                answer = await client.post(**asked(name, prompt))
                assert answer.status_code == 200, answer.text
                assert answer.json()["model"] == name
                assert answer.json()["choices"][0]["text"] == expected[name, prompt]
                third = number * 3 // count
                now = server.resident(), resident_bytes(process=server.process.pid)
                resident[third] = max(resident[third][0], now[0]), max(resident[third][1], now[1])
                if number % 16 == 0:
                    cards = (await client.get("/v1/models")).json()["data"]
                    loaded_most = max(loaded_most, sum(card["loaded"] for card in cards))

        await asyncio.gather(*(one() for _ in range(clients)))
        figures = (await client.get("/metrics")).text
    assert 1 <= loaded_most <= 2, loaded_most
    for name in NAMES:
        found = re.search(rf'vllm:request_success_total{{finished_reason="length",model_name="{name}"}} (\d+)', figures)
        assert found is not None, figures
    assert figures.count("# TYPE vllm:generation_tokens_total counter") == 1
    return [resident[0], resident[2]]


@pytest.mark.skipif(not HAS_NATIVE, reason="memory is planned for the native core")
@pytest.mark.parametrize("count", [48, pytest.param(1000, marks=pytest.mark.full)])
def test_three_models_in_memory_for_two(
    folder: Path, expected: dict[tuple[str, int], str], memory_for_two: int, servers: list[NativeServer], count: int
) -> None:
    """A model that goes in the middle of a request, a text of another model, a request that waits for ever, or memory
    that grows with every load."""
    models = [word for name in NAMES for word in ("-m", f"{name}={folder / name}")]
    servers.append(server := NativeServer(*models, "--models-memory", memory_for_two))
    first, last = asyncio.run(asyncio.wait_for(_load_at_random(server, expected, count), 20 * 60))
    said = server.end()
    assert said.count("is unloaded") >= 2, said
    assert last[0] < 1.15 * first[0] + (32 << 20), (first, last)
    assert last[1] < 1.15 * first[1] + (16 << 20), (first, last)


@pytest.mark.skipif(not HAS_NATIVE, reason="they run on the native core")
def test_what_is_loaded_what_fails_and_what_goes(folder: Path, tmp_path: Path, servers: list[NativeServer]) -> None:
    """A broken model answers with the reason and harms no other; an unknown one is 404; an idle one goes."""
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (tmp_path / "fine").symlink_to(folder / "ann")
    servers.append(server := NativeServer("-m", f"big={folder / 'bob'}", "--models-dir", tmp_path, "--keep", "1s"))
    with httpx.Client(base_url=server.url, timeout=120) as client:
        assert client.get("/ready").status_code == 200
        cards = {card["id"]: card for card in client.get("/v1/models").json()["data"]}
        assert list(cards) == ["big", "broken", "fine"]
        assert not any(card["loaded"] for card in cards.values())
        refused = client.post(**asked("broken", 0))
        assert refused.status_code in (500, 503)
        assert refused.json()["error"]["message"].startswith("broken cannot be loaded: ")
        unknown = client.post(**asked("nobody", 0))
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
        assert client.post(**asked("fine", 0)).status_code == 200
        card = client.get("/v1/models/fine").json()
        assert (card["loaded"], card["precision"], card["max_model_len"]) == (True, "fp32", 128)
        assert card["size"] > 0
        assert client.get("/metrics").text.count('ipex_assist:model_loaded{model_name="fine"} 1.0') == 1
        for _ in range(100):
            if not client.get("/v1/models/fine").json()["loaded"]:
                break
            time.sleep(0.1)
        assert not client.get("/v1/models/fine").json()["loaded"]
        assert not children(server.process.pid)
    assert "fine is unloaded" in server.end()


FREEZES = """
import gc, os, sys
freeze = gc.freeze
def frozen():
    freeze()
    with open(os.environ["FROZEN"], "a") as file:
        file.write(f"{os.getpid()} {gc.get_freeze_count()}\\n")
gc.freeze = frozen
"""


@pytest.mark.skipif(not HAS_NATIVE, reason="they run on the native core")
def test_libraries_are_not_looked_through_again(
    folder: Path, tmp_path: Path, servers: list[NativeServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Collections of garbage that stop the server, and an engine between two passes, for a tenth of a second; and a
    server that freezes what is under way, again with each model."""
    (tmp_path / "sitecustomize.py").write_text(FREEZES)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    monkeypatch.setenv("FROZEN", str(tmp_path / "frozen"))
    servers.append(server := NativeServer(*(word for name in NAMES[:2] for word in ("-m", f"{name}={folder / name}"))))
    with httpx.Client(base_url=server.url, timeout=120) as client:
        for name in NAMES[:2]:
            assert client.post(**asked(name, 0)).status_code == 200
        engines = children(server.process.pid)
    server.end()
    frozen = [tuple(map(int, line.split())) for line in (tmp_path / "frozen").read_text().splitlines()]
    assert sorted(pid for pid, _ in frozen) == sorted([server.process.pid, *engines])
    assert all(count > 30_000 for _, count in frozen)


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("a/b", ModelSource("a/b", "a/b")),
        ("big=a/b", ModelSource("big", "a/b")),
        ("big=a/b,assistant=c/d,precision=int8", ModelSource("big", "a/b", "c/d", "int8")),
        ("a/b:7b=a/b,assistant=none", ModelSource("a/b:7b", "a/b", "none")),
    ],
)
def test_a_model_on_the_command_line(text: str, source: ModelSource) -> None:
    assert read_source(text) == source


@pytest.mark.parametrize(
    "text", ["x=a/b,draft=c", "x=a/b,assistant=", "x=a/b,precision=int8,precision=int4", "x=/none"]
)
def test_a_wrong_one(text: str) -> None:
    with pytest.raises(UsageError):
        read_source(text)


def test_names_are_told_apart(folder: Path) -> None:
    """By the folder of models too; two with one name would answer for each other."""
    assert [each.name for each in read_sources((), str(folder))] == list(NAMES)
    with pytest.raises(UsageError, match="two models have the name 'ann'"):
        read_sources([f"ann={folder / 'bob'}"], str(folder))
    with pytest.raises(UsageError, match="has no model"):
        read_sources((), str(folder / "ann"))


def test_one_model_is_served_as_ever() -> None:
    assert not ManyModelsOptions.of(models=("a/b",)).many
    assert parse(["-m", "a/b"]).model == "a/b"
    assert parse(["-m", "x=a/b"]).model is None
    assert parse([]).model is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("30m", 1800), ("0", 0), ("-1", FOREVER), ("forever", FOREVER), ("2h", 7200), ("90", 90)]
)
def test_how_long_models_are_kept(text: str, seconds: float) -> None:
    assert parse(["-m", "x=a/b", "--keep", text]).many_models.keep == seconds


@pytest.mark.parametrize(
    "words",
    [["--keep", "1h"], ["-m", "x=a/b", "--keep", "soon"], ["-m", "x=a/b", "--served-model-name", "y"],
     ["-m", "a/b", "-m", "c/d", "--assistant-model", "e"], ["--models-memory", "1G"]],
)  # fmt: skip
def test_flags_that_do_not_go_together(words: list[str]) -> None:
    with pytest.raises((UsageError, SystemExit)):
        parse(words)
