"""load_memory.py: what it writes is a checkpoint in several files, and what it reports is that of loading it."""

from __future__ import annotations

import json
from pathlib import Path

import load_memory
import pytest
import torch
from conftest import HAS_NATIVE

from ipex_assist.bench.pairs import published_config
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import UsageError

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason="packed sizes are the native core's")]
SOURCE = "Qwen/Qwen3-30B-A3B"
SMALL = {"hidden_size": 64, "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "vocab_size": 160}


def test_what_is_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Shards that are held until the end, or a config of other shapes, would make the figure another model's."""
    monkeypatch.setattr(load_memory, "published_config", lambda source: published_config(source) | SMALL)
    monkeypatch.setattr(load_memory, "SHARD_BYTES", 1 << 20)
    load_memory.write(SOURCE, 2, tmp_path / "m")
    assert len(list((tmp_path / "m").glob("*.safetensors"))) > 2
    checkpoint = open_checkpoint(str(tmp_path / "m"))
    checkpoint.check_weights()
    expected = load_memory.RandomCheckpoint(SOURCE, checkpoint.config)
    assert checkpoint.shapes() == expected.shapes()
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    [(_, written)], [(_, made)] = checkpoint.tensors([name]), expected.tensors([name])
    assert torch.equal(written, made)
    with pytest.raises(UsageError, match="is not empty"):
        load_memory.write(SOURCE, 2, tmp_path / "m")

    assert load_memory.run(load_memory.parse(["--model", str(tmp_path / "m"), "--precision", "int4"])) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert 0 < found["packed_bytes"] < found["weights_bytes"]
    assert found["before_bytes"] <= found["peak_bytes"]


def test_fp8_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Linears of e4m3 with scales of their blocks, and a hybrid cut to its first layers: what is loaded is as small."""
    small = {"hidden_size": 256, "intermediate_size": 384, "vocab_size": 512}
    monkeypatch.setattr(load_memory, "published_config", lambda source: published_config(source) | small)
    arguments = ["--write", "Qwen/Qwen3.5-9B", "--layers", "4", "--folder", str(tmp_path / "m"), "--fp8"]
    load_memory.write("Qwen/Qwen3.5-9B", 4, tmp_path / "m", fp8=load_memory.parse(arguments).fp8)
    checkpoint = open_checkpoint(str(tmp_path / "m"))
    checkpoint.check_weights()
    assert checkpoint.stored_precision == "fp8"
    assert load_memory.run(load_memory.parse(["--model", str(tmp_path / "m"), "--precision", "fp8"])) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["packed_bytes"] < 1.3 * checkpoint.num_parameters
