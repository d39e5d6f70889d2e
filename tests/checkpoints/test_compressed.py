"""compressed-tensors and FP8 checkpoints: every layout gives the numbers it stands for; what cannot be read is said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import compressed_files
import pytest
import tiny_models
import torch
from compressed_files import Scheme
from conftest import HAS_NATIVE
from quantized_files import PROMPT, declare, reference_logits, relative

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.select_executor import resolve_executor, stored_precision

pytestmark = pytest.mark.one_stack
needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="the native core needs AVX2")

INT4 = {
    "w4-128": Scheme(group=128),
    "w4-32": Scheme(group=32, scale_dtype=torch.float16),
    "w4-asymmetric": Scheme(group=32, symmetric=False),
    "w4-channel": Scheme(),
    "w4-channel-asymmetric": Scheme(symmetric=False),
    "w4-act-order": Scheme(group=32, act_order=True),
    "w4-act-order-asymmetric": Scheme(group=64, act_order=True, symmetric=False),
}
OTHERS = {
    "w8-channel": Scheme("int8"),
    "w8-group-asymmetric": Scheme("int8", group=32, symmetric=False),
    "w8-act-order": Scheme("int8", group=64, act_order=True),
    "w8a8": Scheme("plain8"),
    "w8a8-asymmetric": Scheme("plain8", symmetric=False),
    "w8a8-tensor": Scheme("plain8", tensor=True),
    "fp8-channel": Scheme("fp8"),
    "fp8-tensor": Scheme("fp8", tensor=True),
    "fp8-block": Scheme("fp8", block=(128, 128)),
    "deepseek": Scheme("fp8", block=(128, 128), method="fp8", scale_dtype=torch.float32),
    "deepseek-odd-blocks": Scheme("fp8", block=(48, 80), method="fp8", scale_dtype=torch.float32),
    "fp8-one-scale": Scheme("fp8", tensor=True, method="fp8", scale_dtype=torch.float32),
    "fp8-rows": Scheme("fp8", method="fp8", scale_dtype=torch.float32),
}
SCHEMES = INT4 | OTHERS


@pytest.mark.parametrize("name", SCHEMES)
def test_tensors_are_the_stored_numbers(name: str, tmp_path: Path) -> None:
    """Order of bits, offsets of half a range, zero points along the other dimension, blocks that end early."""
    _, dense = compressed_files.save(tmp_path, scheme=SCHEMES[name])
    checkpoint = open_checkpoint(str(tmp_path))
    assert isinstance(checkpoint, QuantizedCheckpoint)
    read = dict(checkpoint.tensors())
    assert dense.keys() <= read.keys()
    for weight, expected in dense.items():
        assert read[weight].dtype == torch.float32
        assert torch.equal(read[weight], expected), weight
    assert {weight: tuple(tensor.shape) for weight, tensor in read.items()} == checkpoint.shapes()
    assert not any(weight.endswith(("_scale", "_scale_inv", "_packed", "_shape", "_zero_point")) for weight in read)
    checkpoint.check_weights()


@needs_native
@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("llama", "w4-asymmetric"),
        ("llama", "w8-group-asymmetric"),
        ("llama", "w8a8"),
        ("llama", "fp8-block"),
        ("qwen2", "w4-act-order"),
        ("qwen2", "deepseek"),
        ("qwen2-tied", "fp8-tensor"),
        ("qwen3-moe", "w4-32"),
        ("qwen3-moe", "w8-channel"),
        ("qwen3-moe", "deepseek-odd-blocks"),
    ],
)
def test_logits_and_tokens_of_transformers(variant: str, name: str, tmp_path: Path) -> None:
    """In fp32 what is computed is what transformers computes with the dequantized weights, on both executors."""
    model, _ = compressed_files.save(tmp_path, variant, SCHEMES[name])
    expected = reference_logits(model)
    for executor in ("native", "torch"):
        text = tiny_models.text(tmp_path, executor, "fp32")
        found = text.forward(PROMPT, last=len(PROMPT))
        assert (found - expected).abs().max() < 1e-4 * max(1.0, expected.abs().max()), executor
        tokens, logits = list(PROMPT), found[-1:]
        for _ in range(12):
            tokens.append(int(logits[-1].argmax()))
            logits = text.forward(tokens[-1:])
        reference = model.generate(torch.tensor([PROMPT]), max_new_tokens=12, do_sample=False, eos_token_id=None)
        assert tokens == reference[0].tolist(), executor


@needs_native
@pytest.mark.parametrize("name", INT4)
def test_four_bits_are_kept(name: str, tmp_path: Path) -> None:
    """A row with a single 1 picks one column of weights: equal to the last bit, in every linear of a layer."""
    _, dense = compressed_files.save(tmp_path, scheme=SCHEMES[name], num_hidden_layers=1)
    checkpoint = open_checkpoint(str(tmp_path))
    assert stored_precision(checkpoint, "native") == "int4"
    packed = tiny_models.text(tmp_path, "native", "int4").model.packed
    layer = "model.layers.0."
    for which, names in {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "output": ("self_attn.o_proj",),
        "down": ("mlp.down_proj",),
    }.items():
        parts = [dense[f"{layer}{part}.weight"] for part in names]
        out = packed.linears(which, 127.0 * torch.eye(parts[0].shape[1])) / 127.0
        assert torch.equal(out[:, : sum(len(part) for part in parts)], torch.cat(parts).t()), which
    assert estimate_bytes(str(tmp_path), None) == pytest.approx(packed.nbytes, rel=0.35)


INT8 = ("w8-channel", "w8a8", "w8a8-tensor")
FP8 = ("fp8-channel", "fp8-tensor", "fp8-block", "deepseek", "fp8-rows")


@needs_native
@pytest.mark.parametrize("name", INT8 + FP8)
def test_eight_bits_are_kept(name: str, tmp_path: Path) -> None:
    """Likewise int8 with a scale for each row, and FP8 with any that our blocks have place for."""
    model, dense = compressed_files.save(tmp_path, scheme=SCHEMES[name])
    stored = "fp8" if name in FP8 else "int8"
    assert stored_precision(open_checkpoint(str(tmp_path)), "native") == stored
    text = tiny_models.text(tmp_path, "native", stored)
    packed = text.model.packed
    one = 127.0 if stored == "int8" else 1.0
    for which, names in {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "output": ("self_attn.o_proj",),
        "down": ("mlp.down_proj",),
    }.items():
        parts = [dense[f"model.layers.1.{part}.weight"] for part in names]
        out = packed.linears(which, one * torch.eye(parts[0].shape[1])) / one  # the last layer's
        assert torch.equal(out[:, : sum(len(part) for part in parts)], torch.cat(parts).t()), which
    expected = reference_logits(model)
    assert relative(text.forward(PROMPT, last=len(PROMPT)), expected) < (0.08 if stored == "int8" else 0.04)
    assert estimate_bytes(str(tmp_path), None) == pytest.approx(packed.nbytes, rel=0.5)


@needs_native
def test_experts_in_fp8_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each expert has its own blocks of scales; the router stays fp32. Prompts and steps give the same bits."""
    model, _ = compressed_files.save(tmp_path, "qwen3-moe", SCHEMES["deepseek"])
    with caplog.at_level("WARNING", "ipex_assist"):
        text = tiny_models.text(tmp_path, "native", "fp8")
    assert "rounded" not in caplog.text
    prompt = text.forward(PROMPT, last=len(PROMPT))
    assert relative(prompt, reference_logits(model)) < 0.1
    text.truncate(0)
    assert torch.equal(torch.cat([text.forward([token]) for token in PROMPT]), prompt)


@needs_native
@pytest.mark.skipif(not tiny_models.known("deepseek-v3"), reason="this transformers has no DeepSeek-V3")
@pytest.mark.parametrize("nope", [128, 192])
def test_latents_in_fp8(nope: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The keys' part of kv_b_proj is transposed head by head, with its blocks of scales where these end with a head."""
    sizes = {"qk_nope_head_dim": nope, "v_head_dim": 128, "qk_rope_head_dim": 64, "kv_lora_rank": 256}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "q_lora_rank": 128}
    model, _ = compressed_files.save(tmp_path, "deepseek-v3", SCHEMES["deepseek"], **sizes, **heads)
    with caplog.at_level("WARNING", "ipex_assist"):
        text = tiny_models.text(tmp_path, "native", "fp8")
    assert ("3 matrices are rounded to fp8 here" in caplog.text) == (nope == 192)
    assert ("rounded" in caplog.text) == (nope == 192)
    prompt = text.forward(PROMPT, last=len(PROMPT))
    assert relative(prompt, reference_logits(model)) < 0.1
    text.truncate(0)
    assert torch.equal(torch.cat([text.forward([token]) for token in PROMPT]), prompt)


@needs_native
@pytest.mark.skipif(not tiny_models.known("deepseek-v3"), reason="this transformers has no DeepSeek-V3")
@pytest.mark.parametrize("name", ["w4-32", "w8-channel"])
def test_latents_in_integers(name: str, tmp_path: Path) -> None:
    """The same part is rounded again where outputs have scales of their own."""
    model, _ = compressed_files.save(tmp_path, "deepseek-v3", SCHEMES[name], kv_lora_rank=64, q_lora_rank=64)
    stored = stored_precision(open_checkpoint(str(tmp_path)), "native")
    text = tiny_models.text(tmp_path, "native", str(stored))
    prompt = text.forward(PROMPT, last=len(PROMPT))
    assert relative(prompt, reference_logits(model)) < (0.8 if stored == "int4" else 0.2)
    text.truncate(0)
    assert torch.equal(torch.cat([text.forward([token]) for token in PROMPT]), prompt)


@needs_native
@pytest.mark.skipif(not tiny_models.known("deepseek-v3"), reason="this transformers has no DeepSeek-V3")
def test_latents_in_an_order_of_columns(tmp_path: Path) -> None:
    """The transposed part's columns are its outputs, of which no order is kept."""
    compressed_files.save(tmp_path, "deepseek-v3", SCHEMES["w4-act-order"], kv_lora_rank=64, q_lora_rank=64)
    with pytest.raises(IpexAssistError, match=r"act-order .* --precision int8 or bf16"):
        tiny_models.text(tmp_path, "native", "int4")
    tiny_models.text(tmp_path, "native", "int8").forward(PROMPT)


@needs_native
@pytest.mark.parametrize("variant", tiny_models.known("lfm2", "bamba"))
def test_recurrent_layers_in_an_order_of_columns(variant: str, tmp_path: Path) -> None:
    """The columns of their matrices would be packed in an order in which no row is read."""
    scheme = replace(SCHEMES["w4-act-order"], keep=("conv.weight", "conv1d.weight"))
    compressed_files.save(tmp_path, variant, scheme)
    with pytest.raises(IpexAssistError, match=r"act-order .* with recurrent layers: --precision int8 or bf16 reads it"):
        tiny_models.text(tmp_path, "native", "int4")
    tiny_models.text(tmp_path, "native", "int8").forward(PROMPT)


@needs_native
def test_scales_that_no_block_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Blocks of 8 rows and 128 columns differ within 16 outputs: they are rounded to FP8 again, and that is said."""
    scheme = Scheme("fp8", block=(8, 128), method="fp8", scale_dtype=torch.float32)
    model, _ = compressed_files.save(tmp_path, scheme=scheme)
    with caplog.at_level("WARNING", "ipex_assist"):
        text = tiny_models.text(tmp_path, "native", "fp8")
    assert "matrices are rounded to fp8 here" in caplog.text
    assert relative(text.forward(PROMPT, last=len(PROMPT)), reference_logits(model)) < 0.2


@needs_native
def test_any_checkpoint_in_fp8(tmp_path: Path) -> None:
    """--precision fp8 quantizes floats by blocks; prompts, steps and rows beside them give the same bits."""
    model = tiny_models.save(tmp_path, "qwen2")
    text = tiny_models.text(tmp_path, "native", "fp8")
    prompt = text.forward(PROMPT, last=len(PROMPT))
    assert relative(prompt, reference_logits(model)) < 0.2
    text.truncate(0)
    assert torch.equal(torch.cat([text.forward([token]) for token in PROMPT]), prompt)
    with pytest.raises(UsageError, match="the torch executor has no fp8"):
        resolve_executor("torch", "fp8")


@needs_native
@pytest.mark.parametrize("name", ["deepseek", "w8a8"])
def test_other_precisions(name: str, tmp_path: Path) -> None:
    """At any other precision the core holds, bit for bit, what it makes of a float checkpoint with these weights."""
    model, _ = compressed_files.save(tmp_path / "stored", "llama", SCHEMES[name])
    model.save_pretrained(tmp_path / "floats")
    for precision in ("fp32", "bf16", "int4"):
        models = [tiny_models.model(tmp_path / name, "native", precision) for name in ("stored", "floats")]
        checksums = {model.packed.checksum() for model in models}
        assert len(checksums) == 1, precision


def test_parts_in_several_files(tmp_path: Path) -> None:
    """A scale in another shard than its weight, as large checkpoints have it."""
    _, dense = compressed_files.save(tmp_path, scheme=SCHEMES["deepseek"])
    compressed_files.shard(tmp_path)
    read = dict(open_checkpoint(str(tmp_path)).tensors())
    assert all(torch.equal(read[name], expected) for name, expected in dense.items())


def test_what_is_ignored_and_what_is_beside(tmp_path: Path) -> None:
    """Linears in `ignore` are floats; scales of rows and of keys are no weights, and nobody trips over them."""
    scheme = Scheme("fp8", tensor=True, keep=("0.mlp.down_proj.weight",))
    _, dense = compressed_files.save(tmp_path, scheme=scheme)
    assert "model.layers.0.mlp.down_proj.weight" not in dense
    attention = "model.layers.0.self_attn."
    beside = {f"{attention}q_proj.input_scale": torch.ones(1), f"{attention}k_scale": torch.ones(1)}
    compressed_files.change(tmp_path, dict(beside))
    checkpoint = open_checkpoint(str(tmp_path))
    assert f"{attention}q_proj.input_scale" not in checkpoint.names()
    checkpoint.check_weights()
    read = dict(checkpoint.tensors())
    assert all(torch.equal(read[name], expected) for name, expected in dense.items())
    assert read["model.layers.0.mlp.down_proj.weight"].dtype == torch.float32


def test_schemes_that_differ_between_layers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """4 bits in one place and 8 in another: each is read by its own, and kept so where the core has blocks for it."""
    model, dense = compressed_files.save(tmp_path, scheme=Scheme(group=32, keep=("down_proj.weight",)))
    parts, changes = {}, {}
    for name in ("model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight"):
        stored, dense[name] = compressed_files.store(model.state_dict()[name], Scheme("int8", group=32))
        parts |= {name.removesuffix("weight") + part: tensor for part, tensor in stored.items()}
        changes[name] = None
    compressed_files.change(tmp_path, changes | parts)
    declared = Scheme(group=32).declared()
    declared["config_groups"]["group_1"] = Scheme("int8", group=32).declared()["config_groups"]["group_0"]
    declared["config_groups"]["group_1"]["targets"] = ["re:.*down_proj"]
    declare(tmp_path, declared | {"format": "mixed-precision"})
    checkpoint = open_checkpoint(str(tmp_path))
    read = dict(checkpoint.tensors())
    assert all(torch.equal(read[name], expected) for name, expected in dense.items())
    assert stored_precision(checkpoint, "native") == "stored"
    with caplog.at_level("WARNING", "ipex_assist"):
        assert stored_precision(checkpoint, "torch") == "bf16"
    assert "bf16" in caplog.text


def test_words_that_fit_two_schemes(tmp_path: Path) -> None:
    """4 bits in groups of 64 and 8 bits in groups of 32 have as many words and groups: the stored shape decides."""
    _, dense = compressed_files.save(tmp_path, scheme=Scheme(group=64))
    declared = Scheme(group=64).declared()
    declared["config_groups"]["group_1"] = Scheme("int8", group=32).declared()["config_groups"]["group_0"]
    declare(tmp_path, declared)
    read = dict(open_checkpoint(str(tmp_path)).tensors())
    assert all(torch.equal(read[name], expected) for name, expected in dense.items())
    compressed_files.change(tmp_path, {"model.layers.0.mlp.down_proj.weight_shape": None})
    with pytest.raises(IpexAssistError, match="fits several schemes"):
        open_checkpoint(str(tmp_path)).shapes()


def test_orders_that_mean_nothing(tmp_path: Path) -> None:
    """compressed-tensors fills weight_g_idx with -1 where columns are in order."""
    _, dense = compressed_files.save(tmp_path, scheme=Scheme(group=32))
    name = "model.layers.0.mlp.down_proj.weight"
    index = torch.full((dense[name].shape[1],), -1, dtype=torch.int32)
    compressed_files.change(tmp_path, {name.replace("weight", "weight_g_idx"): index})
    checkpoint = open_checkpoint(str(tmp_path))
    assert isinstance(checkpoint, QuantizedCheckpoint)
    assert not checkpoint.act_order
    assert torch.equal(dict(checkpoint.tensors([name]))[name], dense[name])


UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "marlin": ({"format": "marlin-24"}, "its format is marlin-24"),
    "sparse": ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "stored as sparse ones"),
    "rotated": ({"transform_config": {"config_groups": {"R1": {}}}}, "activations are rotated"),
    "3 bits": ({"config_groups": {"a": {"weights": {"num_bits": 3}}}}, "weights of type int with 3 bits"),
    "no groups": ({"config_groups": ["W4A16"]}, "its config_groups are not schemes by name"),
    "e5m2": ({"quant_method": "fp8", "fmt": "e5m2"}, "its weights are in e5m2"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_said(name: str, tmp_path: Path) -> None:
    """One sentence with the reason and what to do, before any tensor is misread."""
    changes, reason = UNREADABLE[name]
    compressed_files.save(tmp_path, scheme=Scheme(extra=changes))
    with pytest.raises(IpexAssistError, match=re.escape(reason)) as raised:
        open_checkpoint(str(tmp_path)).shapes()
    assert "ipex-assist quantize" in str(raised.value)


Q = "model.layers.1.self_attn.q_proj."
DAMAGES: dict[str, tuple[str, str, Any, str]] = {
    "no scale": ("deepseek", "weight_scale_inv", lambda t: None, "weight_scale is not"),
    "a scale of another matrix": ("deepseek", "weight_scale_inv", lambda t: t.repeat(3, 1), "weight_scale_inv [6, 2]"),
    "a scale that is NaN": ("deepseek", "weight_scale_inv", lambda t: t * float("nan"), "are not all finite"),
    "a scale that is an integer": ("deepseek", "weight_scale_inv", lambda t: t.int(), "are torch.int32"),
    "e5m2": ("deepseek", "weight", lambda t: t.float().to(torch.float8_e5m2), "q_proj.weight is F8_E5M2"),
    "a stack": ("deepseek", "weight", lambda t: t[None], "no matrix"),
    "too few words": ("w4-32", "weight_packed", lambda t: t[:, 8:], "none of the schemes"),
    "rows that are missing": ("w4-32", "weight_packed", lambda t: t[1:], "have the shapes"),
    "words as floats": ("w4-32", "weight_packed", lambda t: t.float(), "is packed in torch.float32"),
    "another shape": ("w4-32", "weight_shape", lambda t: t + 1, "193, 193] as stored"),
    "zero points of another shape": ("w4-asymmetric", "weight_zero_point", lambda t: t[1:], "its zero points are"),
    "a group that is not there": ("w4-act-order", "weight_g_idx", lambda t: t + 1, "does not name one of 6 groups"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_tensors_are_refused(name: str, tmp_path: Path) -> None:
    """No wrong text, no traceback: a sentence that names the module."""
    scheme, part, damage, reason = DAMAGES[name]
    compressed_files.save(tmp_path, scheme=SCHEMES[scheme])
    whole = dict(open_checkpoint(str(tmp_path))._stored.tensors([Q + part]))  # type: ignore[attr-defined]
    compressed_files.change(tmp_path, {Q + part: damage(whole[Q + part])})
    with pytest.raises(IpexAssistError, match=re.escape(reason)) as raised:
        list(open_checkpoint(str(tmp_path)).tensors())
    assert "layers.1.self_attn.q_proj" in str(raised.value)


def test_a_weight_that_is_no_number(tmp_path: Path) -> None:
    """0x7f is NaN in e4m3: the name, the row and the column are said."""
    compressed_files.save(tmp_path, scheme=SCHEMES["deepseek"])
    [(_, values)] = open_checkpoint(str(tmp_path))._stored.tensors([Q + "weight"])  # type: ignore[attr-defined]
    values.view(torch.uint8)[5, 7] = 0x7F
    compressed_files.change(tmp_path, {Q + "weight": values})
    for executor in ("torch", *(("native",) if HAS_NATIVE else ())):
        with pytest.raises(IpexAssistError, match=r"q_proj.weight holds NaN in row 5, column 7"):
            tiny_models.model(tmp_path, executor, "bf16", exact=False)
