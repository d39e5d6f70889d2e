"""GGUF files: configs, names and values against the Hugging Face models they were written from, and broken files."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import checkpoint_files
import gguf
import numpy
import pytest
import torch
from conftest import HAS_NATIVE
from gguf import GGMLQuantizationType as Type
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from ipex_assist.checkpoints import gguf_file
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.native.library import unavailable

NEEDS_NATIVE = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
MODEL_TYPES = ["llama", "mistral", "qwen2", "qwen3", "gpt_bigcode"]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_a_model_survives_the_way_through_gguf(tmp_path, model_type, tied):
    """Config, names and values: a model built from what we read gives the logits of the one that was written.

    Would catch a wrong name, q and k rows left permuted, a lost bias, a wrong eps, head_dim or tied head.
    """
    changes: dict[str, Any] = {"tie_word_embeddings": tied}
    if model_type != "gpt_bigcode":
        changes["rms_norm_eps"] = 3e-5
    model = checkpoint_files.tiny_model(model_type, **changes)
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert checkpoint.config["tie_word_embeddings"] is tied
    assert checkpoint.num_parameters == sum(tensor.numel() for tensor in checkpoint_files.state(model).values())
    assert estimate_bytes(str(tmp_path / "m.gguf"), "bf16") > 0

    config = {key: value for key, value in checkpoint.config.items() if key not in ("model_type", "torch_dtype")}
    again = AutoModelForCausalLM.from_config(AutoConfig.for_model(checkpoint.config["model_type"], **config)).float()
    missing, unexpected = again.load_state_dict(dict(checkpoint.tensors()), strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    again.tie_weights()
    tokens = torch.arange(1, 60).reshape(1, -1)
    with torch.no_grad():
        assert torch.allclose(again.eval()(tokens).logits, model(tokens).logits, atol=1e-5)


def test_strings_are_found_without_reading_the_others(tmp_path):
    """A string that another one contains, an empty one, one of two that are the same, or one that is not there."""
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    tokens = ["<s>", "x</s>", "", "</s>", "<end>", "é</s>", "▁<s>", "<end>", "end>", "ｗ"]
    writer.add_token_list(tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = gguf_file.read_header(tmp_path / "m.gguf").get("tokenizer.ggml.tokens")
    assert stored.read() == tokens
    found = {token: len(tokens) - 1 - tokens[::-1].index(token) for token in ("</s>", "<end>", "", "ｗ", "é</s>")}
    assert stored.find([*found, "<eos>", "s>", "w"]) == found


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q8_0, Type.F16, Type.BF16])
def test_quantized_tensors(tmp_path, kind):
    """Would catch wrong block arithmetic at chunk ends, and q and k permuted before instead of after dequantizing."""
    model = checkpoint_files.tiny_model("llama", hidden_size=128)
    stored = checkpoint_files.write_gguf(model, tmp_path / "m.gguf", kind)
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    read = dict(checkpoint.tensors())
    assert read.keys() == stored.keys()
    for name, values in stored.items():
        expected = torch.from_numpy(values)
        if expected.dim() == 2:
            expected = expected.to(torch.float16 if kind == Type.F16 else torch.bfloat16)
        assert read[name].dtype == expected.dtype
        assert torch.equal(read[name], expected), name
    assert checkpoint.parameter_bytes == sum(tensor.nbytes for tensor in read.values())


@pytest.mark.parametrize("executor", ["torch", pytest.param("native", marks=NEEDS_NATIVE)])
def test_quantized_tensors_are_exact_at_fp32(tmp_path, executor):
    """Would catch dequantized values rounded to bf16 on their way into a model that computes in fp32."""
    model = checkpoint_files.tiny_model("llama", hidden_size=128, intermediate_size=128)
    stored = checkpoint_files.write_gguf(model, tmp_path / "m.gguf", Type.Q8_0)
    values = {name: torch.from_numpy(value) for name, value in stored.items()}
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    read = dict(checkpoint.stream(checkpoint.names(), "fp32"))
    assert all(torch.equal(read[name], value) for name, value in values.items())
    rounded = [name for name, value in values.items() if not torch.equal(value.bfloat16().float(), value)]
    assert any(name.endswith("q_proj.weight") for name in rounded), "these values would not show a rounding"
    assert checkpoint.dequantized_to("fp32") == "float32"  # so that a packed copy of rounded values is not taken
    assert checkpoint.dequantized_to("int8") is None

    model.load_state_dict(values, strict=False)
    model.save_pretrained(tmp_path / "folder")
    logits = []
    for source in ("m.gguf", "folder"):
        loaded = load_model(LoadRequest(open_checkpoint(str(tmp_path / source)), "fp32", executor))
        logits.append(loaded.extend(loaded.new_sequence(40), list(range(5, 25)), last=20))
    assert torch.equal(*logits)


KINDS = [Type.Q2_K, Type.Q3_K, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.Q5_1, Type.IQ4_NL, Type.IQ4_XS, Type.MXFP4]


@pytest.mark.parametrize("kind", KINDS)
def test_an_expert_of_any_type_is_read_alone(tmp_path, kind):
    """Would catch an expert's bytes taken from the middle of another's, of types that the package cannot write."""
    block, size = gguf.GGML_QUANT_SIZES[kind]
    raw = numpy.random.default_rng(0).integers(0, 50, (3, 2, 2 * size), dtype=numpy.uint8)  # small: scales are finite
    path = tmp_path / "m.gguf"
    path.write_bytes(b"head" + raw.tobytes())
    whole = gguf_file.GgufTensor(path, (3, 2, 2 * block), int(kind), 4)
    one = gguf_file.rows_of("experts", whole, 1, 2)
    [(_, tensor)] = gguf_file.read_tensors([("expert", one)])
    expected = torch.from_numpy(gguf.dequantize(raw[1], kind)).bfloat16()
    assert expected.isfinite().all()
    assert expected.any()
    assert torch.equal(tensor[0], expected)


def test_tensors_of_many_chunks(tmp_path, monkeypatch):
    """Would catch chunks in the wrong place, and a last chunk that is not full."""
    model = checkpoint_files.tiny_model("qwen2")
    stored = checkpoint_files.write_gguf(model, tmp_path / "m.gguf", Type.Q8_0)
    monkeypatch.setattr(gguf_file, "_CHUNK", 96)
    for name, tensor in open_checkpoint(str(tmp_path / "m.gguf")).tensors():
        assert torch.allclose(tensor.float(), torch.from_numpy(stored[name]), rtol=2**-8), name


def test_bf16_rounds_to_nearest_even():
    values = numpy.random.default_rng(0).standard_normal(100_000).astype(numpy.float32)
    values[:3] = [1 + 2**-8, 1 + 3 * 2**-8, 0.0]  # two ties and a zero
    expected = torch.from_numpy(values.copy()).bfloat16().view(torch.int16).numpy()
    assert (gguf_file._to_bf16(values).astype(numpy.int16) == expected).all()


def test_named_tensors_come_in_the_order_asked(tmp_path):
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("qwen2"), tmp_path / "m.gguf")
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    names = checkpoint.names()[::-4]
    assert [name for name, _ in checkpoint.tensors(names)] == names
    with pytest.raises(IpexAssistError, match=r"lacks 1 tensors, the first is model\.nonsense"):
        list(checkpoint.tensors(["model.nonsense"]))


def test_explicit_head_dim_and_biases_of_llama(tmp_path):
    """Would catch head_dim from hidden_size / heads, and biases of q and k left permuted."""
    model = checkpoint_files.tiny_model("llama", head_dim=32, attention_bias=True)
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf")
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert checkpoint.config["head_dim"] == 32
    assert checkpoint.config["attention_bias"] is True
    read, expected = dict(checkpoint.tensors()), checkpoint_files.state(model)
    # The o_proj bias of this variant exists in Hugging Face and in the file alike.
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())


ROPE_KEYS = "llama.rope.scaling."


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({f"{ROPE_KEYS}type": "none"}, None),
        ({f"{ROPE_KEYS}type": "linear", f"{ROPE_KEYS}factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (
            {f"{ROPE_KEYS}type": "yarn", f"{ROPE_KEYS}factor": 4.0, f"{ROPE_KEYS}original_context_length": 32},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
    ],
)
def test_rope_scaling(tmp_path, metadata, expected):
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), tmp_path / "m.gguf", metadata=metadata)
    assert open_checkpoint(str(tmp_path / "m.gguf")).config["rope_scaling"] == expected


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_factors_become_the_four_numbers(tmp_path, factor):
    """Llama 3.x files have a tensor of divisors; transformers computes the reference from the four numbers."""
    scaling = {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    model = checkpoint_files.tiny_model("llama")
    config = AutoConfig.for_model(
        "llama", **checkpoint_files.TINY["llama"], rope_scaling={**scaling, "rope_theta": 10000.0}
    )
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 10000.0 ** -(torch.arange(0, 16, 2).float() / 16)
    factors = (plain / scaled).numpy()
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf", extra={"rope_freqs.weight": factors})
    checkpoint = open_checkpoint(str(tmp_path / "m.gguf"))
    assert checkpoint.config["rope_scaling"] == pytest.approx(scaling)
    assert "rope_freqs.weight" not in checkpoint.names()

    factors[-1] *= 1.5
    checkpoint_files.write_gguf(model, tmp_path / "other.gguf", extra={"rope_freqs.weight": factors})
    with pytest.raises(IpexAssistError, match=r"rotary frequency factors are not those of Llama 3\.x"):
        open_checkpoint(str(tmp_path / "other.gguf"))


def test_split_files_are_one_checkpoint(tmp_path):
    """Any part opens the whole; would catch offsets taken relative to the wrong part."""
    model = checkpoint_files.tiny_model("qwen2")
    checkpoint_files.write_gguf(model, tmp_path / "m.gguf", split_max_tensors=10)
    parts = sorted(tmp_path.glob("m-*-of-*.gguf"))
    assert len(parts) == 3
    expected = checkpoint_files.state(model)
    read = dict(open_checkpoint(str(parts[0])).tensors())
    assert read.keys() == expected.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in expected.items())

    other = parts[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(IpexAssistError, match="is one of 3 parts by its metadata, but is not named like"):
        open_checkpoint(str(other))
    other.rename(parts[0])
    parts[1].unlink()
    with pytest.raises(IpexAssistError, match=rf"lacks 1 of 3 parts: {parts[1].name}"):
        open_checkpoint(str(parts[0]))


def test_end_tokens_of_every_kind(tmp_path):
    """Chat models end a turn with a token that is not always eos_token_id."""
    tokens = ["<unk>", "<s>", "</s>", "<|eot_id|>", "<|im_end|>", "<|end|>", "plain"]
    path = checkpoint_files.write_vocabulary(
        tmp_path / "v.gguf", tokens, [2, 3, 3, 3, 3, 1, 1], merges=[], bos_token_id=1, eos_token_id=2, eom_token_id=6
    )
    config = open_checkpoint(str(path)).generation_config
    assert config == {"bos_token_id": 1, "eos_token_id": [2, 3, 4, 5, 6]}  # some files call "<|end|>" plain text


# --- broken and unsupported files


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("qwen2"), path, Type.Q8_0)
    return path.read_bytes()


def _open(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return open_checkpoint(str(path))


def test_truncated_data(tmp_path, whole):
    size = len(whole) * 9 // 10
    with pytest.raises(IpexAssistError, match=rf"is truncated: expected [\d,]+ bytes, found {size:,}\.") as caught:
        _open(tmp_path / "m.gguf", whole[:size])
    # Alignment pads the end; the last tensor's last byte is what must be there.
    expected = int(re.search(r"expected ([\d,]+)", str(caught.value))[1].replace(",", ""))
    assert len(whole) - 32 < expected <= len(whole)


def test_truncated_header(tmp_path, whole):
    """Cut anywhere: always our message, never a traceback or an endless loop."""
    for size in (*range(0, 200, 7), *range(200, whole.index(b"output_norm.weight"), 331)):
        with pytest.raises(IpexAssistError, match=r"truncated or corrupt|is no GGUF file"):
            _open(tmp_path / "m.gguf", whole[:size])


def test_corrupt_counts(tmp_path, whole):
    """A huge count or length must not be believed."""
    huge = struct.pack("<Q", 1 << 60)
    tokens = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    for at in (8, 16, 24, tokens, tokens + 8):
        with pytest.raises(IpexAssistError, match="truncated or corrupt"):
            _open(tmp_path / "m.gguf", whole[:at] + huge + whole[at + 8 :])


def test_other_files(tmp_path, whole):
    with pytest.raises(IpexAssistError, match="is no GGUF file: it starts with b'PK"):
        _open(tmp_path / "m.gguf", b"PK\x03\x04" + whole[4:])
    for version in (1, 0x03000000):
        with pytest.raises(IpexAssistError, match="versions 2 and 3 are read"):
            _open(tmp_path / "m.gguf", whole[:4] + struct.pack("<I", version) + whole[8:])
    with pytest.raises(IpexAssistError, match="Git LFS pointer"):
        _open(tmp_path / "m.gguf", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")


def test_unsupported_architecture_lists_the_supported(tmp_path, whole):
    with pytest.raises(
        IpexAssistError, match=r"'quux2' is not supported; supported are llama, qwen2, qwen3, starcoder"
    ):
        _open(tmp_path / "m.gguf", whole.replace(b"qwen2", b"quux2"))


def test_foreign_tensors_are_refused(tmp_path):
    """A mixture of experts loaded as a dense model would be nonsense."""
    extra = {"blk.0.ffn_gate_inp.weight": numpy.zeros((8, 64), dtype=numpy.float32)}
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), tmp_path / "m.gguf", extra=extra)
    with pytest.raises(IpexAssistError, match="1 tensors do not belong to a llama model"):
        open_checkpoint(str(tmp_path / "m.gguf"))


def test_unknown_quantization_type(tmp_path, whole):
    at = whole.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    with pytest.raises(IpexAssistError, match="quantization type 999, which the installed gguf package does not know"):
        _open(tmp_path / "m.gguf", whole[:at] + struct.pack("<I", 999) + whole[at + 4 :])


def test_a_vocabulary_alone_is_no_model(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(1)
    checkpoint_files.finish(writer)
    with pytest.raises(IpexAssistError, match=r"no tensor token_embd\.weight"):
        open_checkpoint(str(tmp_path / "m.gguf"))
