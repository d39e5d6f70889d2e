"""ipex-assist quantize: what it writes is what GPTQ's readers expect, and no worse than the core's own int4."""

from __future__ import annotations

import json
import os
import stat
import sys
import types
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_files import PROMPT, reference_logits, relative
from safetensors.torch import load_file

from ipex_assist import cli
from ipex_assist.checkpoints import writer
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands import quantized_writer
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.models import find
from ipex_assist.quantization.rtn import quantize, relative_error

SIZES: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 160,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
}


def run(*argv: str) -> int:
    return cli.main(["quantize", *argv, "--no-launch"])


def min_max(weight: torch.Tensor, group: int) -> float:
    """Root mean square error of plain min-max rounding: the reference to beat."""
    x = weight.view(-1, group)
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    scale = (high - low) / 15
    zero = torch.round(-low / scale)
    rounded = ((torch.round(x / scale) + zero).clamp(0, 15) - zero) * scale
    return float((rounded - x).square().sum().sqrt())


@pytest.mark.parametrize("group", [32, 64, 128])
def test_clip_search_beats_min_max(group: int) -> None:
    """It does so on normal weights, and by more on those with outliers, which are what clipping is for."""
    torch.manual_seed(0)
    normal = torch.randn(64, 512)
    outliers = normal.clone()
    outliers[:, ::61] *= 4
    for weight, gain in ((normal, 0.97), (outliers, 0.97)):
        error, _ = relative_error(weight, quantize(weight, group))
        assert error**0.5 < gain * min_max(weight, group)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 300),
    st.sampled_from([32, 64, 128]),
    st.booleans(),
    st.sampled_from([1e-9, 1e-3, 1.0, 1e4]),
    st.sampled_from(["normal", "positive", "negative", "zeros", "one"]),
    st.integers(0, 1 << 30),
)
def test_any_matrix(columns: int, width: int, group: int, sym: bool, size: float, kind: str, seed: int) -> None:
    """Values, zeros and scales stay in the range of GPTQ files for any matrix, and the matrix stays what it was."""
    weight = torch.randn(columns, width, generator=torch.Generator().manual_seed(seed)) * size
    weight = {
        "normal": weight,
        "positive": weight.abs(),
        "negative": -weight.abs(),
        "zeros": torch.zeros_like(weight),
        "one": torch.zeros_like(weight).index_fill_(1, torch.tensor([width // 2]), size),
    }[kind]
    stored = quantize(weight, group, sym=sym)
    assert stored.shape == (columns, width)
    assert int(stored.values.max()) <= 15
    assert int(stored.zeros.min()) >= 1, "readers of GPTQ files disagree about zeros of 0"
    assert int(stored.zeros.max()) <= 15
    assert not sym or bool((stored.zeros == 8).all())
    assert torch.equal(stored.scales, stored.scales.half().float())
    assert bool((stored.scales > 0).all())
    if kind == "zeros":
        assert not stored.dequantized().any()
    if size >= 1e-3:
        error, norm = relative_error(weight, stored)
        assert error <= 0.05 * norm, (error, norm)


@pytest.mark.parametrize(
    ("variant", "flags"),
    [
        ("llama", ()),
        ("qwen2-tied", ("--group-size", "32")),
        ("opt", ("--group-size", "64", "--sym")),
        ("gpt-bigcode", ("--group-size", "32")),
    ],
)
def test_round_trip(variant: str, flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every matrix of the layers comes back rounded, everything else to the bit, and the model still computes."""
    sizes = SIZES if variant in ("llama", "qwen2-tied") else {}
    model = tiny_models.save(tmp_path / "m", variant, **sizes)
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "q"), "--bits", "4", *flags) == 0
    assert "matrices in 4 bits" in capsys.readouterr().err
    before = dict(open_checkpoint(str(tmp_path / "m")).tensors())
    checkpoint = open_checkpoint(str(tmp_path / "q"))
    after = dict(checkpoint.tensors())
    assert after.keys() == before.keys()
    rounded = {name for name in before if not torch.equal(after[name], before[name])}
    assert rounded == set(checkpoint.modules)
    assert all(".h." in name or "layers." in name for name in rounded)
    for name in rounded:
        assert relative(after[name], before[name]) < 0.15, name
    for name in before.keys() - rounded:
        assert after[name].dtype == before[name].dtype, name
    state = model.state_dict()
    model.load_state_dict({name: after.get(name, state[name]) for name in state})
    if HAS_NATIVE:
        text = tiny_models.text(tmp_path / "q", "native", "int4")
        assert relative(text.forward(PROMPT, last=len(PROMPT)), reference_logits(model)) < 0.07


def test_what_is_written(tmp_path: Path) -> None:
    """Names, types, shapes and config keys that transformers, GPTQModel and vLLM look for; tokenizer files go along."""
    model = tiny_models.save(tmp_path / "m", "llama", **SIZES)
    checkpoint_files.tiny_tokenizer().save_pretrained(tmp_path / "m")
    (tmp_path / "m" / "model.onnx").write_bytes(b"other weights")
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "q")) == 0
    tensors = load_file(tmp_path / "q" / "model.safetensors")
    prefix = "model.layers.0.mlp.down_proj."
    shapes = {name.removeprefix(prefix): (t.dtype, tuple(t.shape)) for name, t in tensors.items() if prefix in name}
    assert shapes == {
        "qweight": (torch.int32, (20, 192)),
        "qzeros": (torch.int32, (3, 24)),
        "scales": (torch.float16, (3, 192)),
        "g_idx": (torch.int32, (160,)),
    }
    assert tensors[prefix + "g_idx"].tolist() == [0] * 64 + [1] * 64 + [2] * 32
    config = json.loads((tmp_path / "q" / "config.json").read_text())
    declared = config["quantization_config"]
    assert declared == json.loads((tmp_path / "q" / "quantize_config.json").read_text())
    expected = {"quant_method": "gptq", "bits": 4, "group_size": 64, "desc_act": False, "sym": False}
    assert declared.items() >= (expected | {"checkpoint_format": "gptq"}).items()
    from transformers import GPTQConfig

    GPTQConfig.from_dict(dict(declared))  # raises where transformers would not take it
    assert config["hidden_size"] == model.config.hidden_size
    names = {path.name for path in (tmp_path / "q").iterdir()}
    assert {"tokenizer.json", "tokenizer_config.json"} <= names
    assert "model.onnx" not in names
    assert list(tmp_path.glob(".*")) == [], "the working folder was left behind"


def test_gguf_and_sharded_input_sharded_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GGUF file becomes a folder with a tokenizer; several output files get an index that names them all."""
    model = checkpoint_files.tiny_model("qwen2")
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf")
    checkpoint_files.save_shards(model, tmp_path / "m", count=3)
    monkeypatch.setattr(writer, "SHARD_BYTES", 20_000)
    for source in ("m.gguf", "m"):
        output = tmp_path / f"q-{source.replace('.', '-')}"
        assert run("-m", str(tmp_path / source), "-o", str(output), "--group-size", "32") == 0
        index = json.loads((output / "model.safetensors.index.json").read_text())
        files = sorted(path.name for path in output.glob("*.safetensors"))
        assert len(files) > 2
        assert sorted(set(index["weight_map"].values())) == files
        checkpoint = open_checkpoint(str(output))
        original = dict(open_checkpoint(str(tmp_path / source)).tensors())
        read = dict(checkpoint.tensors())
        assert read.keys() == original.keys()
        assert all(relative(read[name].float(), original[name].float()) < 0.15 for name in read)
    assert (tmp_path / "q-m-gguf" / "tokenizer.json").is_file()


def test_files_are_readable_as_the_umask_says(tmp_path: Path) -> None:
    """Catches safetensors' 0600, with which another account cannot run what was quantized."""
    usual = os.umask(0o027)
    try:
        writer.save_tensors({"weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    finally:
        os.umask(usual)
    assert stat.S_IMODE((tmp_path / "model.safetensors").stat().st_mode) == 0o640


def test_a_failure_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends half way must not leave a folder that looks like a checkpoint."""
    tiny_models.save(tmp_path / "m", "llama", **SIZES)
    checkpoint = open_checkpoint(str(tmp_path / "m"))
    architecture = find(checkpoint.architecture)
    assert architecture is not None
    monkeypatch.setattr(quantized_writer, "_write_configs", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(IpexAssistError, match="disk full"):
        quantized_writer.write_rtn(checkpoint, architecture, tmp_path / "q", 128, sym=False)
    assert [path.name for path in tmp_path.iterdir()] == ["m"]


REFUSED: dict[str, tuple[tuple[str, ...], int, str]] = {
    "3 bits": (("--bits", "3"), 2, "invalid choice"),
    "odd group": (("--group-size", "100"), 2, "invalid choice"),
    "calibration without auto-round": (("--iters", "5"), 2, "--iters: only with --method auto-round"),
    "no such text": (("--method", "auto-round", "--calibration", "/nowhere"), 2, "there is no such file"),
    "no steps": (("--method", "auto-round", "--iters", "0"), 2, "must be at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_usage(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is said before anything is read."""
    flags, code, message = REFUSED[name]
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "q"), *flags) == code
    assert message in capsys.readouterr().err


def test_models_that_cannot_be_quantized(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One quantized already, an unknown architecture, sides that do not fit the format, a folder that is in use."""
    tiny_models.save(tmp_path / "m", "llama", **SIZES)
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "q")) == 0
    assert run("-m", str(tmp_path / "q"), "-o", str(tmp_path / "again")) == 1
    assert "is quantized already" in capsys.readouterr().err
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "q")) == 2
    assert "exists already" in capsys.readouterr().err
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"architectures": ["XGLMForCausalLM"]}))
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "again")) == 1
    assert "cannot be quantized: XGLMForCausalLM is none of " in capsys.readouterr().err
    tiny_models.save(tmp_path / "odd", "llama-odd-sizes")
    assert run("-m", str(tmp_path / "odd"), "-o", str(tmp_path / "again")) == 1
    assert "must be multiples of 8" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_auto_round_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says in one line what to install."""
    monkeypatch.setitem(sys.modules, "auto_round", None)
    tiny_models.save(tmp_path / "m", "llama")
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "q"), "--method", "auto-round") == 2
    assert "[quantize]'" in capsys.readouterr().err


def test_auto_round_gets_what_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with auto-round's interface: our flags reach it, and what it writes lands in the output folder."""
    asked: dict[str, Any] = {}

    class AutoRound:
        def __init__(self, model: str, tokenizer: Any, **options: Any) -> None:
            asked.update(options, model=model)

        def quantize_and_save(self, output_dir: str, format: str) -> None:
            folder = Path(output_dir) / "m-w4g64"
            folder.mkdir(parents=True)
            (folder / "config.json").write_text('{"quantization_config": {"quant_method": "gptq"}}')
            asked["format"] = format

    monkeypatch.setitem(sys.modules, "auto_round", types.SimpleNamespace(AutoRound=AutoRound))
    checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path / "m")
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog " * 20)
    flags = ("--group-size", "64", "--iters", "3", "--seqlen", "16", "--nsamples", "5")
    argv = ("-m", str(tmp_path / "m"), "-o", str(tmp_path / "q"), "--method", "auto-round", *flags)
    assert run(*argv, "--calibration", str(tmp_path / "text.txt")) == 0
    assert (asked["bits"], asked["group_size"], asked["sym"], asked["iters"], asked["seqlen"]) == (4, 64, True, 3, 16)
    assert [tuple(sample.shape) for sample in asked["dataset"]] == [(1, 16)] * 5
    assert asked["format"] == "auto_gptq"
    assert (tmp_path / "q" / "config.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "q", "text.txt"]
