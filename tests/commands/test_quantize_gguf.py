"""ipex-assist quantize -o FILE.gguf: blocks by their definition, less error than plain rounding, whole files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import block_files
import checkpoint_files
import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize
from hypothesis import given, settings
from hypothesis import strategies as st

from ipex_assist import cli
from ipex_assist.checkpoints import gguf_file
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.gguf_quantizer import record_importance, source_of, write_gguf
from ipex_assist.quantization.gguf_mix import FILE_TYPES, MixFacts, type_of
from ipex_assist.quantization.gguf_quants import COLUMNS, quantize
from ipex_assist.tokenization.tokenizer import load_tokenizer

SEARCHED = [Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_NL, Type.IQ4_XS]
SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 8, "num_key_value_heads": 4}


def run(*argv: str) -> int:
    return cli.main(["quantize", *argv, "--no-launch"])


def plain(weights: np.ndarray, kind: Type) -> np.ndarray:
    """The same number of bits by absolute or least and largest value of 16 or 32, scales in fp32: no search."""
    size = 16 if kind == Type.Q6_K else 32
    x = weights.reshape(-1, size)
    if kind in (Type.Q4_K, Type.Q5_K):
        most = 15 if kind == Type.Q4_K else 31
        low = np.minimum(x.min(1, keepdims=True), 0)
        scale = np.maximum((x.max(1, keepdims=True) - low) / most, 1e-30)
        return (np.rint((x - low) / scale) * scale + low).reshape(weights.shape)
    if kind == Type.Q6_K:
        scale = np.maximum(np.abs(x).max(1, keepdims=True) / 31, 1e-30)
        return (np.rint(x / scale) * scale).reshape(weights.shape)
    values = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
    scale = np.maximum(np.abs(x).max(1, keepdims=True) / 127, 1e-30)
    nearest = np.abs(x[..., None] / scale[..., None] - values).argmin(-1)
    return (values[nearest] * scale).reshape(weights.shape)


def error(weights: np.ndarray, other: np.ndarray, importance: np.ndarray | float = 1.0) -> float:
    """Root of the (weighted) squared error, of the weights' own size."""
    return math.sqrt(float((importance * np.square(other - weights)).sum() / (importance * np.square(weights)).sum()))


def matrix(seed: int, rows: int = 32, columns: int = 1024) -> np.ndarray:
    """Weights as models have them: normal, rows of different sizes, and a few large columns."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * np.exp(rng.normal(0, 0.5, (rows, 1)))
    x[:, rng.integers(0, columns, 4)] *= 4
    return (x * 0.02).astype(np.float32)


@pytest.mark.parametrize("kind", SEARCHED, ids=lambda kind: kind.name)
def test_less_error_than_plain_rounding(kind: Type) -> None:
    """Although scales have 6 or 8 bits and not 32; what is written means the same to the gguf package and to us."""
    x = matrix(1)
    raw, squared = quantize(x, kind)
    found = dequantize(raw, kind)
    np.testing.assert_array_equal(found, block_files.floats(kind, raw))
    assert squared == pytest.approx(float(np.square(found - x).sum()), rel=1e-4)
    assert error(x, found) < 0.95 * error(x, plain(x, kind))


@pytest.mark.parametrize("kind", SEARCHED, ids=lambda kind: kind.name)
def test_importance_lowers_the_error_that_matters(kind: Type) -> None:
    """Columns whose inputs are large get the better part of the bits."""
    x = matrix(2)
    importance = np.exp(np.random.default_rng(3).normal(0, 1.5, x.shape[1])).astype(np.float32)
    weighted, unweighted = (dequantize(quantize(x, kind, of)[0], kind) for of in (importance, None))
    assert error(x, weighted, importance) < 0.97 * error(x, unweighted, importance)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(SEARCHED),
    st.sampled_from(("zeros", "one", "equal", "positive", "negative", "one each", "outlier", "steps")),
    st.sampled_from((1e-30, 1e-8, 1e-3, 1.0, 1e3)),
    st.booleans(),
)
def test_any_matrix(kind: Type, shape: str, size: float, weighted: bool) -> None:
    """Blocks of zeros, of one number, of one sign, of sizes at which fp16 ends: finite numbers near the weights."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((4, 512)).astype(np.float32)
    x = {
        "zeros": lambda: 0 * x,
        "one": lambda: np.where(np.arange(512) == 77, x, 0),
        "equal": lambda: 0 * x + 1,
        "positive": lambda: np.abs(x),
        "negative": lambda: -np.abs(x),
        "one each": lambda: np.where(np.arange(512) % 256 == 3, x, 0),
        "outlier": lambda: np.where(np.arange(512) == 9, 1000, x),
        "steps": lambda: np.rint(3 * x),
    }[shape]().astype(np.float32) * np.float32(size)
    importance = rng.random(512).astype(np.float32) if weighted else None
    if weighted and shape == "outlier":
        importance = np.zeros(512, np.float32)
    found = dequantize(quantize(x, kind, importance)[0], kind)
    assert np.isfinite(found).all()
    if size >= 1e-3:
        largest = np.abs(x.reshape(-1, 256)).max(1)[:, None]
        # A superblock's scale is a whole number of fp16's smallest steps, and at most 32 · 127 times that is a value.
        assert (np.abs(found - x).reshape(-1, 256) <= 0.16 * largest + 32 * 127 * 2.0**-25).all()
    if shape == "zeros":
        assert not found.any()


def test_threads_and_chunks_change_nothing() -> None:
    x = matrix(4, rows=300, columns=1024)
    once, _ = quantize(x, Type.Q4_K, threads=1)
    np.testing.assert_array_equal(quantize(x, Type.Q4_K, threads=3)[0], once)
    np.testing.assert_array_equal(quantize(x[:7], Type.Q4_K)[0], once[:7])


def test_mixtures_of_types() -> None:
    """As llama.cpp's llama-quant.cpp for Llama 3 8B (32 layers, 4 queries for each key), and for its relatives."""
    facts = MixFacts(layers=32, heads_per_key=4, experts=0, tied=False)

    def kinds(leaf: str, file_type: str, weighted: bool = False, facts: MixFacts = facts) -> list[str]:
        found = (type_of(f"blk.{i}.{leaf}.weight", (4096, 4096), file_type, facts, weighted) for i in range(32))
        return [Type(kind).name for kind in found if kind is not None]

    more = [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]
    for leaf in ("attn_v", "ffn_down", "ffn_down_exps"):
        assert [i for i, kind in enumerate(kinds(leaf, "Q4_K_M")) if kind == "Q6_K"] == more
    assert set(kinds("attn_q", "Q4_K_M")) == set(kinds("attn_output", "Q4_K_M")) == {"Q4_K"}
    assert set(kinds("attn_qkv", "Q4_K_M")) == {"Q5_K"}
    assert set(kinds("attn_v", "IQ4_XS")) == {"Q5_K"}
    assert [i for i, kind in enumerate(kinds("ffn_down", "IQ4_XS")) if kind == "Q5_K"] == [0, 1, 2, 3]
    assert set(kinds("ffn_down", "IQ4_XS", weighted=True)) == {"IQ4_XS"}
    eight = MixFacts(layers=32, heads_per_key=4, experts=8, tied=False)
    assert set(kinds("attn_v", "Q4_K_M", facts=eight)) == set(kinds("attn_k", "Q4_K_M", facts=eight)) == {"Q8_0"}
    assert type_of("output.weight", (128256, 4096), "Q4_K_M", facts, False) == Type.Q6_K
    assert type_of("token_embd.weight", (128256, 4096), "Q4_K_M", facts, False) == Type.Q4_K
    tied = MixFacts(layers=32, heads_per_key=4, experts=0, tied=True)
    assert type_of("token_embd.weight", (128256, 4096), "Q4_K_M", tied, False) == Type.Q6_K
    assert type_of("blk.0.ffn_up.weight", (1536, 576), "Q4_K_M", facts, False) == Type.Q5_0
    assert type_of("blk.0.ffn_up.weight", (1536, 576), "IQ4_XS", facts, False) == Type.IQ4_NL
    assert type_of("blk.0.ffn_up.weight", (1536, 72), "Q4_K_M", facts, False) == Type.F16
    for kept in ("blk.0.attn_norm.weight", "blk.0.ffn_gate_inp.weight", "blk.0.ssm_conv1d.weight", "blk.0.attn_q.bias"):
        assert type_of(kept, (64, 256), "Q4_K_M", facts, False) is None


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_the_file(file_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All metadata but the file's type stay as they are, matrices are near, and vectors are the same to the bit."""
    source, output = tmp_path / "m-f32.gguf", tmp_path / "q" / "m.gguf"
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("qwen2", **SIZES), source, metadata={"general.name": "é"})
    assert run("-m", str(source), "-o", str(output), "--type", file_type) == 0
    assert f"matrices in {file_type}" in capsys.readouterr().err
    assert [path.name for path in output.parent.iterdir()] == ["m.gguf"]  # nothing is left beside it
    before, after = (gguf_file.read_header(path) for path in (source, output))
    own = {"general.file_type": FILE_TYPES[file_type][0], "general.quantization_version": 2, "general.alignment": 32}
    words = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
    for key in words:
        assert after.strings(key) == before.strings(key)
    assert {key: value for key, value in after.metadata.items() if key not in words} == {
        key: value for key, value in before.metadata.items() if key not in words
    } | own
    reader = gguf.GGUFReader(output)  # a second reader of the header, and of what lies where
    assert [tensor.name for tensor in reader.tensors] == list(before.tensors)
    first, second = (dict(open_checkpoint(str(path)).tensors()) for path in (source, output))
    for name, tensor in first.items():
        if tensor.dim() < 2:
            assert torch.equal(second[name], tensor), name
        else:
            assert float((second[name].float() - tensor).norm() / tensor.norm()) < 0.1, name
    kinds = {after.tensors[name].type for name in after.tensors}
    assert FILE_TYPES[file_type][1] in kinds


@pytest.mark.parametrize("variant", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_folder(variant: str, tmp_path: Path) -> None:
    """The same model and the same tokens as the folder's; of Llama, rows of q and k are where llama.cpp has them."""
    model = checkpoint_files.tiny_model(variant, **SIZES | ({"head_dim": 32} if variant == "qwen3" else {}))
    checkpoint_files.save(model, tmp_path / "m")
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "m.gguf"), "--type", "Q8_0") == 0
    written, folder = open_checkpoint(str(tmp_path / "m.gguf")), open_checkpoint(str(tmp_path / "m"))
    written.check_weights()
    expected = dict(folder.tensors())
    for name, tensor in written.tensors():
        close = float((tensor.float() - expected[name].float()).norm() / expected[name].float().norm())
        assert close < 0.01, name
    for key in ("rms_norm_eps", "vocab_size", "max_position_embeddings", "num_key_value_heads"):
        assert written.config[key] == pytest.approx(folder.config[key]), key
    assert written.config_spec().ropes == folder.config_spec().ropes
    text = "The quick brown fox, 12345! It's"
    one, other = (load_tokenizer(each)(text)["input_ids"] for each in (written, folder))
    assert one == other
    if variant == "llama":  # beside a file that is written after llama.cpp's converter
        checkpoint_files.write_gguf(model, tmp_path / "c.gguf", Type.Q8_0)
        ours, theirs = (gguf.GGUFReader(tmp_path / name) for name in ("m.gguf", "c.gguf"))
        stored = {tensor.name: np.array(tensor.data) for tensor in ours.tensors}
        for tensor in theirs.tensors:
            np.testing.assert_array_equal(stored[tensor.name], tensor.data, err_msg=tensor.name)


def test_llama3_scaling_of_a_folder(tmp_path: Path) -> None:
    """Its four numbers become divisors in the file, and the same numbers again here."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
    model = checkpoint_files.tiny_model("llama", **SIZES, rope_theta=500000.0, rope_scaling=scaling)
    checkpoint_files.save(model, tmp_path / "m")
    assert run("-m", str(tmp_path / "m"), "-o", str(tmp_path / "m.gguf")) == 0
    one, other = (open_checkpoint(str(path)).config_spec() for path in (tmp_path / "m", tmp_path / "m.gguf"))
    assert one.ropes == other.ropes


def test_parts_and_experts(tmp_path: Path) -> None:
    """A split file becomes one; quantizing what is quantized dequantizes it first."""
    model = checkpoint_files.tiny_model("llama", **SIZES)
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf", Type.Q8_0, split_max_tensors=5)
    first = sorted(tmp_path.glob("m-00001-of-*.gguf"))[0]
    assert run("-m", str(first), "-o", str(tmp_path / "q.gguf"), "--type", "Q6_K", "-q") == 0
    one, other = (dict(open_checkpoint(str(path)).tensors()) for path in (first, tmp_path / "q.gguf"))
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert float((other[name].float() - tensor.float()).norm() / tensor.float().norm()) < 0.02, name
    assert "split.count" not in gguf_file.read_header(tmp_path / "q.gguf").metadata


def test_what_linears_read_is_recorded(tmp_path: Path) -> None:
    """By the place of each tensor: means of squares of the inputs that transformers' own linears get."""
    path, text = tmp_path / "m.gguf", tmp_path / "text.txt"
    model = checkpoint_files.tiny_model("llama", **SIZES)
    checkpoint_files.write_gguf(model, path)
    text.write_text("The quick brown fox jumps over the lazy dog. " * 40)
    checkpoint = open_checkpoint(str(path))
    assert isinstance(checkpoint, GgufCheckpoint)
    assert len(record_importance(checkpoint, source_of(checkpoint), text, samples=3, length=64)) == 2 * 7 + 1
    found = record_importance(checkpoint, source_of(checkpoint), text, samples=1, length=64)
    seen: dict[str, torch.Tensor] = {}
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0][0]}))
    tokens = load_tokenizer(checkpoint)(text.read_text())["input_ids"][:64]
    with torch.inference_mode():
        model(torch.tensor([tokens[:-1]]))  # what the last one leads to is not asked for
    names = {name: means for (name, _), means in found.items()}
    for theirs, ours in {
        "model.layers.1.self_attn.k_proj": "blk.1.attn_k.weight",
        "model.layers.0.self_attn.o_proj": "blk.0.attn_output.weight",
        "model.layers.1.mlp.gate_proj": "blk.1.ffn_gate.weight",
        "model.layers.1.mlp.down_proj": "blk.1.ffn_down.weight",
    }.items():
        expected = seen[theirs].square().mean(0).numpy()
        np.testing.assert_allclose(names[ours], expected, rtol=0.05, atol=1e-4 * expected.max(), err_msg=ours)
    assert len(names) == 2 * 7 + 1  # all linears of two layers, and the head


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a file that is there": (("-m", "{file}", "-o", "{file}"), "exists already; name a new file"),
    "a type of a folder": (("-m", "{file}", "-o", "{new}", "--type", "Q6_K"), "does not end in .gguf"),
    "auto-round": (("-m", "{file}", "-o", "{new}.gguf", "--method", "auto-round"), "write folders"),
    "no text": (("-m", "{file}", "-o", "{new}.gguf", "--seqlen", "9"), "which --calibration names"),
    "too little text": (("-m", "{file}", "-o", "{new}.gguf", "--calibration", "{text}"), "fewer than one sequence"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line with the reason, and no file."""
    argv, reason = REFUSED[name]
    model = checkpoint_files.tiny_model("llama")
    checkpoint_files.save(model, tmp_path / "folder")
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf")
    (tmp_path / "text.txt").write_text("a few words")
    places = {"folder": tmp_path / "folder", "file": tmp_path / "m.gguf", "new": tmp_path / "new"}
    capsys.readouterr()
    assert run(*(each.format(**places, text=tmp_path / "text.txt") for each in argv)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert reason in lines[-1]
    assert not list(tmp_path.glob("*new*"))


def test_no_number_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN would become a scale, and every weight of its block with it."""
    model = checkpoint_files.tiny_model("llama", **SIZES)
    model.model.layers[1].mlp.up_proj.weight.data[3, 7] = math.nan
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf")
    assert run("-m", str(tmp_path / "m.gguf"), "-o", str(tmp_path / "q.gguf")) == 1
    assert "blk.1.ffn_up.weight holds NaN or infinity" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["m.gguf"]


@pytest.mark.full
def test_a_real_model(tmp_path: Path) -> None:
    """SmolLM2-135M: less perplexity lost than by plain rounding of the same matrices, and less with a text beside."""
    from ipex_assist.commands.perplexity import perplexity, windows
    from ipex_assist.commands.shared.demo_model import demo_model_path
    from ipex_assist.executors.load import load_model
    from ipex_assist.executors.load_request import LoadRequest

    checkpoint = open_checkpoint(str(demo_model_path()))
    assert isinstance(checkpoint, GgufCheckpoint)
    data = Path(cli.__file__).parent / "data"
    tokens = load_tokenizer(checkpoint)((data / "evaluation.txt").read_text())["input_ids"][:1024]

    def score(path: Path) -> float:
        model = load_model(LoadRequest(open_checkpoint(str(path)), "fp32", "torch", exact=False))
        return perplexity(model, tokens, windows(len(tokens), 512, 448)).perplexity

    source = source_of(checkpoint)
    importance = record_importance(checkpoint, source, data / "text.txt", samples=4, length=512)
    found: dict[str, Any] = {"stored": score(demo_model_path())}
    for name, of_inputs in (("plain", "plain"), ("searched", None), ("weighted", importance)):
        path = tmp_path / f"{name}.gguf"
        if of_inputs == "plain":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("ipex_assist.commands.gguf_quantizer.quantize", _plain_blocks)
                write_gguf(source, path, "IQ4_XS", threads=2)
        else:
            write_gguf(source, path, "IQ4_XS", of_inputs, threads=2)  # type: ignore[arg-type]
        found[name] = score(path)
        path.unlink()
    print(found)
    lost = {name: value / found["stored"] - 1 for name, value in found.items()}
    assert lost["searched"] < lost["plain"]
    assert lost["weighted"] < lost["searched"]


def _plain_blocks(weights: np.ndarray, kind: int, importance: Any = None, threads: int = 1) -> tuple[np.ndarray, float]:
    """Blocks without a search, where there is one: by the largest value."""
    from ipex_assist.quantization import gguf_quants

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_quants, "_DELTAS", np.zeros(1))
        return quantize(weights, kind, None, threads)


assert set(COLUMNS) >= {int(kind) for kind in SEARCHED}
