"""Folders of adapters: what is read, and what is refused in a sentence."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import adapter_files
import pytest
import torch
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.lora_folder import parse_adapter, read_lora
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.generation.load_options import LoadOptions


class Small(torch.nn.Module):
    """Two linears by names that adapters have."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.up_proj = torch.nn.Linear(12, 8), torch.nn.Linear(12, 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return adapter_files.save_adapter(tmp_path / "it", Small(), 4)


def change(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "scales"),
    [
        ({"lora_alpha": 6}, (1.5, 1.5)),
        ({"lora_alpha": 6, "use_rslora": True}, (3.0, 3.0)),
        ({"lora_alpha": 6, "alpha_pattern": {"q_proj": 2}}, (0.5, 1.5)),
        ({"lora_alpha": 6, "alpha_pattern": {"q": 2, "(up|down)_proj": 10}}, (1.5, 2.5)),
    ],
)
def test_scales(folder: Path, fields: dict[str, Any], scales: tuple[float, float]) -> None:
    """Finds a factor that is divided by the wrong rank, and patterns that match a part of a name."""
    change(folder, **fields)
    assert [each.scale for each in read_lora(str(folder))] == pytest.approx(scales)


def test_ranks_by_module(tmp_path: Path) -> None:
    """Finds a scale by the common rank where a module has another."""
    made = adapter_files.save_adapter(tmp_path, Small(), 4, ranks={"q_proj": 9}, use_rslora=True)
    parts = list(read_lora(str(made)))
    assert [len(each.a) for each in parts] == [9, 4]
    assert [each.scale for each in parts] == pytest.approx([8 / math.sqrt(9), 4.0])


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "biases"),
        ({"lora_bias": True}, "lora_bias"),
        ({"peft_type": "LOHA"}, "LOHA"),
        ({"init_lora_weights": "pissa_niter_16"}, "pissa_niter_16, which changes"),
        ({"trainable_token_indices": [1]}, "token embeddings"),
        ({"r": 8}, r"matrices of \[4, 12\] and \[8, 4\], and its rank is 8"),
        ({"r": 300}, "rank 300, and adapters of up to 256"),
        ({"r": "four"}, "rank 'four'"),
        ({"alpha_pattern": {"(": 2}}, "no regular expression"),
        ({"rank_pattern": [1]}, "rank_pattern must be an object"),
    ],
)
def test_other_kinds_are_refused(folder: Path, fields: dict[str, Any], reason: str) -> None:
    """Finds an adapter that is applied as if it were a plain one."""
    change(folder, **fields)
    with pytest.raises(UsageError, match=reason):
        list(read_lora(str(folder)))


@pytest.mark.parametrize(
    "name", ["embed_tokens.lora_embedding_A", "q_proj.lora_magnitude_vector", "q_proj.lora_B.bias", "lm_head.weight"]
)
def test_other_tensors_are_named(folder: Path, name: str) -> None:
    """Finds a tensor that is left out silently."""
    path = str(folder / "adapter_model.safetensors")
    save_file({**load_file(path), f"base_model.model.{name}": torch.zeros(4)}, path)
    with pytest.raises(UsageError, match=f"holds base_model.model.{name}"):
        list(read_lora(str(folder)))


def test_files_that_are_missing_or_damaged(folder: Path, tmp_path: Path) -> None:
    """Finds a traceback for a wrong folder."""
    with pytest.raises(UsageError, match=r"nowhere/adapter_config\.json: there is no such file"):
        list(read_lora(str(tmp_path / "nowhere")))
    tensors = folder / "adapter_model.safetensors"
    path, whole = str(tensors), tensors.read_bytes()
    one = {key: value for key, value in load_file(path).items() if "up_proj.lora_B" not in key}
    save_file(one, path)
    with pytest.raises(UsageError, match="up_proj has only its A of two matrices"):
        list(read_lora(str(folder)))
    tensors.write_bytes(whole[:-40])
    with pytest.raises(IpexAssistError, match="truncated"):
        list(read_lora(str(folder)))
    tensors.unlink()
    with pytest.raises(UsageError, match=r"adapter_model\.safetensors: there is no such file"):
        list(read_lora(str(folder)))
    (folder / "adapter_config.json").write_text("{")
    tensors.write_bytes(whole)
    with pytest.raises(IpexAssistError, match="cannot be read"):
        list(read_lora(str(folder)))


def test_names() -> None:
    """Finds a path with = in it taken for a name, and two adapters of one name."""
    assert parse_adapter("sql=adapters/sql") == ("sql", "adapters/sql")
    assert parse_adapter("adapters/sql/") == ("sql", "adapters/sql/")
    assert parse_adapter("/a=b/notes") == ("notes", "/a=b/notes")
    with pytest.raises(UsageError, match="two adapters are named sql"):
        LoadOptions(lora=("a/sql", "sql=b"))
    with pytest.raises(UsageError, match="stands for no adapter"):
        LoadOptions(lora=("none=b",))
    assert LoadOptions(lora=("a/sql", "b/notes")).adapters == {"sql": "a/sql", "notes": "b/notes"}
