"""`serve --prefix-store`: what one server has read, the next one does not read again."""

from __future__ import annotations

import random
import re
import time
from pathlib import Path

import checkpoint_files
import httpx
import pytest
from conftest import HAS_NATIVE
from native_server import NativeServer

from ipex_assist import cli
from ipex_assist.generation.load_options import LoadOptions
from ipex_assist.generation.prefix_options import PrefixOptions
from ipex_assist.workers.settings import WorkerSettings
from ipex_assist.workers.wire import MessageDecoder, encoded

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="prefixes are the native core's")]
SYSTEM = random.Random(3).choices(range(5, 200), k=600)


def served(folder: Path, store: Path, prompts: list[list[int]]) -> tuple[list[str], int]:
    """The texts of a server that is started for them and ended, and how many tokens it has not read."""
    server = NativeServer("-m", folder, "--prefix-store", store)
    try:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            for _ in range(600):
                if client.get("/ready").status_code == 200:
                    break
                time.sleep(0.1)
            texts = []
            for prompt in prompts:
                body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
                texts.append(client.post("/v1/completions", json=body).raise_for_status().json()["choices"][0]["text"])
            found = re.search(r"vllm:prefix_cache_hits_total{.*} (\S+)", client.get("/metrics").text)
        server.end()
    finally:
        server.process.kill()
        server.process.communicate()
    assert found is not None
    return texts, int(float(found[1]))


def test_a_second_server_reads_what_the_first_kept(tmp_path: Path) -> None:
    """A flag that does not reach the engines, or files that are not whole when the first server has ended."""
    model = checkpoint_files.tiny_model("llama", max_position_embeddings=1024)
    folder, store = checkpoint_files.save(model, tmp_path / "model"), tmp_path / "store"
    prompts = [[*SYSTEM, 5 + i, 9] for i in range(3)]
    texts, _ = served(folder, store, prompts)
    again, found = served(folder, store, prompts[2:])
    assert again == texts[2:]
    assert found == len(SYSTEM)


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is loaded, by both commands."""
    tmp_path.chmod(0o777)
    (tmp_path / "prompts").write_text('{"prompt": "x"}\n')
    for command in (["serve"], ["batch", str(tmp_path / "prompts"), "-o", str(tmp_path / "out")]):
        assert cli.main([*command, "--prefix-store", str(tmp_path)]) == 2
        assert "can be written by others (mode 777)" in capsys.readouterr().err


def test_settings_reach_the_worker_as_they_are() -> None:
    settings = WorkerSettings(LoadOptions(), 8, prefixes=PrefixOptions(prefix_store="x", prefix_store_size=1 << 20))
    assert MessageDecoder[WorkerSettings](WorkerSettings).read(encoded(settings)) == settings
