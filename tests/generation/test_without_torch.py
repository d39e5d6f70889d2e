"""A second start needs neither torch nor transformers, whose imports take longer than all else it does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import checkpoint_files
import gguf
import pytest

import ipex_assist
from ipex_assist.deferred_imports import keep_torch_to
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.native import loading as native_loading
from ipex_assist.native.library import unavailable

pytestmark = pytest.mark.skipif(unavailable() is not None, reason="the native core cannot run here")

PROGRAM = """
import json, sys
from ipex_assist.cli import main
asked = json.loads(sys.argv[1])
assert all(main(flags) == 0 for flags in asked)
print(json.dumps(sorted({"torch", "transformers"}.intersection(sys.modules))))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint whose tokenizer is tokenizer.json and nothing else, as Qwen's are."""
    folder = checkpoint_files.save(checkpoint_files.tiny_model("qwen2"), tmp_path_factory.mktemp("model"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_greedy_text_from_a_packed_model(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    options = {"max_new_tokens": 12, "ignore_eos": True}
    model = ipex_assist.load(str(folder), None, precision="int4", cache_packed=True)  # with torch: it packs
    expected = [model.generate("Hello", **options), model.stream("Hello", chat=True, **options)]
    for _ in expected[1]:
        pass
    flags = ["-m", str(folder), "--precision", "int4", "--no-assisted", "--cache-packed", "--no-launch", "--json"]
    flags += ["-p", "Hello", "--max-new-tokens", "12", "--ignore-eos"]
    raw = [*flags, "--raw"]
    asked = [raw, flags, [*raw[:4], "--assistant-model", "lookup", *raw[5:]]]
    lines = [json.loads(line) for line in started(asked)]
    assert lines.pop() == []
    texts = [expected[0], expected[1].result(), expected[0]]
    assert [line["tokens"] for line in lines] == [text.tokens for text in texts]
    assert [line["text"] for line in lines] == [text.text for text in texts]


def test_a_drawn_text_needs_no_torch(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are drawn in the core."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model = ipex_assist.load(str(folder), None, precision="int4", cache_packed=True)
    options = {"max_new_tokens": 8, "ignore_eos": True, "do_sample": True, "seed": 3}
    flags = ["-m", str(folder), "--precision", "int4", "--no-assisted", "--cache-packed", "--no-launch", "--json"]
    flags += ["-p", "Hello", "--raw", "--max-new-tokens", "8", "--ignore-eos", "--do-sample", "--seed", "3"]
    [line, modules] = started([flags])
    assert json.loads(line)["tokens"] == model.generate("Hello", **options).tokens
    assert json.loads(modules) == []


def test_a_first_text_needs_no_torch_and_waits_for_no_packed_copy(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first start of a person is one second of imports longer, or as long as the disk takes for the copy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    flags = ["-m", str(folder), "--precision", "int4", "--no-assisted", "--cache-packed", "--no-launch"]
    flags += ["-p", "Hello", "--raw", "--max-new-tokens", "8", "--ignore-eos"]
    told = """
import ipex_assist.executors.native.loading as loading
save = loading.save_packed
loading.save_packed = lambda *given, **more: print("|saves") or save(*given, **more)
"""
    text = ipex_assist.load(str(folder), None, precision="int4").generate("Hello", max_new_tokens=8, ignore_eos=True)
    output = "\n".join(started([flags], before=told))
    assert output == f"{text.text}\n|saves\n[]", output
    assert list(tmp_path.rglob("*.packed"))


def test_a_stored_file_needs_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing them takes longer than reading a file of a gigabyte."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    file = tmp_path / "m.gguf"
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("qwen2"), file, gguf.GGMLQuantizationType.Q4_0)
    flags = ["-m", str(file), "--no-assisted", "--no-launch", "-p", "Hello", "--max-new-tokens", "8", "--ignore-eos"]
    texts = [ipex_assist.load(str(file), None).generate("Hello", max_new_tokens=8, ignore_eos=True, chat=chat).text
             for chat in (False, True)]  # fmt: skip
    assert "\n".join(started([[*flags, "--raw"], flags])) == "\n".join([*texts, "[]"])


def test_a_quick_start_says_what_is_wrong_with_the_tokenizer_before_it_packs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder, tmp_path / "model")
    (tmp_path / "model/tokenizer.json").write_text("{}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(native_loading, "_pack", lambda request, model: pytest.fail("packed for nothing"))
    with pytest.raises(IpexAssistError, match="the tokenizer cannot be loaded"):
        ipex_assist.load(str(tmp_path / "model"), None, precision="int4", quick_start=True)


def started(asked: list[list[str]], after: str = "", before: str = "", **environment: str) -> list[str]:
    """The lines that a process prints which runs `before`, the command with each of these flags, and `after`."""
    command = [sys.executable, "-c", before + PROGRAM + after, json.dumps(asked)]
    ended = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_torch_that_is_here_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        keep_torch_to(before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        keep_torch_to(before)
