"""prompts.py on a tiny model: what it counts must be what a prompt computes."""

from __future__ import annotations

import json
from pathlib import Path

import checkpoint_files
import forward
import prompts
import pytest
from conftest import HAS_NATIVE
from gguf import GGMLQuantizationType

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models.spec import DecoderSpec

SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 64}
pytestmark = [
    pytest.mark.alone,
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason="it times the native core"),
]


@pytest.fixture(autouse=True)
def _smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    name, config = forward.CONFIGS["qwen2.5-1.5b"]
    monkeypatch.setitem(forward.CONFIGS, "tiny", (name, config | SIZES))
    monkeypatch.setattr(prompts, "peak", lambda pool, precision: {"int4": 2e9, "bf16": 1e9}[precision])


def test_a_floor_is_products_at_the_peak(capsys: pytest.CaptureFixture[str]) -> None:
    """A table, a head or norms counted with the weights, or a token that sees all others, would be another floor."""
    prompts.main(["--models", "tiny", "--precisions", "int4", "--tokens", "20,50", "--repeats", "1"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    qkv, output, mlp = 32 * (32 + 2 * 16), 32 * 32, 3 * 32 * 48  # 2 KV heads of 8
    for result, tokens in zip(found["results"], (20, 50), strict=True):
        seen = sum(position + 1 for position in range(tokens))
        products = tokens * 3 * (qkv + output + mlp) / 2e9 + 3 * 4 * 8 * 2 * seen / 1e9
        assert result["floor_s"] == pytest.approx(products)
        assert len(result["seconds"]["samples"]) == 1


def test_a_file_beside_llama_cpp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A speed of generation taken for that of the prompt, our seconds beside their tokens, or another peak."""
    model = checkpoint_files.tiny_model("llama", hidden_size=256, intermediate_size=512)
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf", GGMLQuantizationType.Q8_0)
    program = tmp_path / prompts.PROGRAM
    program.write_text('#!/bin/sh\necho "$@" >> $0.log\necho \'{"pl": 1, "speed_pp": 125.0, "speed_tg": 3.0}\'\n')
    program.chmod(0o755)
    monkeypatch.setattr(prompts, "peak", lambda pool, precision: {"int8": 4e9, "bf16": 1e9}[precision])
    flags = ["--models", str(tmp_path / "m.gguf"), "--precisions", "stored", "--tokens", "40", "--repeats", "2"]
    prompts.main([*flags, "--llama-cpp", str(tmp_path)])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    [result], [row] = found["results"], found["table"]
    assert result["llama_cpp"] == [125.0, 125.0]
    assert row["÷ llama.cpp"] == f"{40 / result['seconds']['median'] / 125:.2f}"
    assert result["peak"] == 4e9
    asked = (tmp_path / f"{prompts.PROGRAM}.log").read_text().splitlines()
    assert len(asked) == 2
    assert f"-m {tmp_path / 'm.gguf'} " in asked[0]
    assert "-npp 40 " in asked[0]
    program.write_text("#!/bin/sh\necho no model >&2\nexit 1\n")
    with pytest.raises(IpexAssistError, match="ended with 1: no model"):
        prompts.main([*flags, "--llama-cpp", str(tmp_path)])


def test_weights_of_a_layer_alone_count() -> None:
    packed = forward.load("tiny", "int4")
    assert isinstance(packed.spec, DecoderSpec)
    assert prompts.linear_weights(forward.CONFIGS["tiny"][0], packed.spec) == 3 * (32 * 64 + 32 * 32 + 3 * 32 * 48)
