"""Names of models as people read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipex_assist.checkpoints.short_name import short_assistant, short_name
from ipex_assist.commands.shared.demo_model import demo_model_path

pytestmark = pytest.mark.one_stack

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
        ("gpt2", "gpt2"),
        ("/data/models/Qwen2.5-7B-Instruct/", "Qwen2.5-7B-Instruct"),
        ("~/models/Llama-3.1-8B-Instruct-Q4_K_M.gguf", "Llama-3.1-8B-Instruct-Q4_K_M"),
        ("/m/Qwen2.5-32B-Q8_0-00001-of-00003.gguf", "Qwen2.5-32B-Q8_0"),
        (f"/hub/models--Qwen--Qwen2.5-7B-Instruct/snapshots/{COMMIT}", "Qwen2.5-7B-Instruct"),
        (f"/hub/models--gpt2/snapshots/{COMMIT}/", "gpt2"),
        ("Qwen/Qwen2.5-7B (random weights)", "Qwen2.5-7B (random weights)"),
    ],
)
def test_short_name(source: str, name: str) -> None:
    """A line on a terminal has no room for a path, and a snapshot's last folder is a commit that names nothing."""
    assert short_name(source) == name


def test_the_embedded_model_is_named_without_its_quantization() -> None:
    """Its path in site-packages has 90 characters."""
    assert short_name(str(demo_model_path())) == "SmolLM2-135M-Instruct"


def test_the_working_folder_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`-m .` gave an empty name."""
    folder = tmp_path / "my-model"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert short_name(".") == short_name("./") == "my-model"


@pytest.mark.parametrize(
    ("assistant", "name"),
    [
        ("self", "self"),
        ("lookup", "lookup"),
        ("/data/a+b/draft.gguf", "draft"),
        ("lookup+Qwen/Qwen2.5-0.5B-Instruct", "lookup+Qwen2.5-0.5B-Instruct"),
        ("lookup+mtp+Qwen/Qwen3.5-0.8B", "lookup+mtp+Qwen3.5-0.8B"),
        ("org/head+org/small", "head+small"),
        ("/m/head+/m/small.gguf", "head+small"),
        ("lookup+/m/draft.gguf (universal)", "lookup+draft (universal)"),
    ],
)
def test_short_assistant(assistant: str, name: str) -> None:
    """What stands before the path and after it says how it drafts."""
    assert short_assistant(assistant) == name
