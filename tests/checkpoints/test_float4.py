"""NVFP4, MXFP4, bitsandbytes and BitNet: the stored numbers, as they are in the core or dequantized exactly."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import checkpoint_files
import compressed_files
import float4_files
import pytest
import quantized_files
import tiny_models
import torch
from conftest import HAS_NATIVE
from quantized_files import PROMPT, declare, reference_logits, relative
from safetensors.torch import load_file, save_file

from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.select_executor import stored_precision
from ipex_assist.quantization.precision import BLOCK_FORMAT, BLOCK_TYPES
from ipex_assist.quantization.stored_blocks import FP4, MXFP4, NF4, NVFP4, TQ2_0

needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="the native core needs AVX2")

BLOCKS = {
    **{"nvfp4": NVFP4, "modelopt": NVFP4, "mxfp4": MXFP4, "nf4": NF4, "nf4-plain-scales": NF4, "fp4": FP4},
    **{"bitnet": TQ2_0, "autobitlinear": TQ2_0},
}


def kept_as(layout: str) -> str:
    """The precision that linears of a layout have in the core: in blocks, if it multiplies these."""
    if layout in BLOCKS and BLOCKS[layout] - BLOCK_FORMAT in BLOCK_TYPES:
        return "stored"
    return "int8" if layout in ("llm-int8", "bitnet", "autobitlinear") else "bf16"


@pytest.mark.parametrize("layout", float4_files.LAYOUTS)
def test_tensors_are_the_stored_numbers(layout: str, tmp_path: Path) -> None:
    """Order of nibbles, which scale is whose, multiplied or divided: a slip in any of them gives another matrix."""
    _, dense = float4_files.save(tmp_path, layout)
    checkpoint = open_checkpoint(str(tmp_path))
    assert isinstance(checkpoint, QuantizedCheckpoint)
    checkpoint.check_weights()
    read = dict(checkpoint.tensors())
    assert {name: tuple(tensor.shape) for name, tensor in read.items()} == checkpoint.shapes()
    assert dense.keys() == checkpoint.modules.keys()
    for name, expected in dense.items():
        torch.testing.assert_close(read[name], expected, rtol=3e-7, atol=0, msg=name)
    assert not [name for name in read if not name.endswith(".weight")]


@needs_native
@pytest.mark.parametrize("layout", float4_files.LAYOUTS)
def test_logits_of_the_core(layout: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Against transformers with the dequantized weights; prompts and steps give the same bits."""
    model, _ = float4_files.save(tmp_path, layout)
    expected = reference_logits(model)
    checkpoint = open_checkpoint(str(tmp_path))
    with caplog.at_level("WARNING", "ipex_assist"):
        precision = stored_precision(checkpoint, "native")
    assert precision == kept_as(layout)
    assert ("become bf16" in caplog.text) == (precision == "bf16")
    text = tiny_models.text(tmp_path, "native", precision)
    prompt = text.forward(PROMPT, last=len(PROMPT))
    text.truncate(0)
    steps = torch.cat([text.forward([token]) for token in PROMPT])
    assert torch.equal(prompt, steps)
    assert relative(prompt, expected) < 0.07
    if precision != "bf16":
        assert estimate_bytes(str(tmp_path), None) == pytest.approx(text.model.packed.nbytes, rel=0.1)


@pytest.mark.parametrize("layout", [*float4_files.LAYOUTS, "gptq", "int8"])
def test_memory_is_planned_without_torch(layout: str, tmp_path: Path) -> None:
    """A server's first process has no torch, and asks what precision a checkpoint will have."""
    if layout == "gptq":
        quantized_files.save(tmp_path, bits=8, group=32, sym=True)
    elif layout == "int8":
        compressed_files.save(tmp_path, scheme=compressed_files.Scheme("int8", group=32))
    else:
        float4_files.save(tmp_path, layout)
    code = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from ipex_assist.checkpoints.open import open_checkpoint\n"
        "from ipex_assist.checkpoints.packed_size import estimate_bytes\n"
        "print(open_checkpoint(sys.argv[1]).stored_precision, estimate_bytes(sys.argv[1], None))"
    )
    precision, size = checkpoint_files.run_python(code, str(tmp_path)).split()
    assert precision == str(open_checkpoint(str(tmp_path)).stored_precision)
    assert int(size) == estimate_bytes(str(tmp_path), None)


@needs_native
@pytest.mark.parametrize("layout", BLOCKS)
def test_blocks_keep_every_bit(layout: str, tmp_path: Path) -> None:
    """A row with a single 1 picks one column out of a linear: what the file says, up to one rounding to fp32."""
    if kept_as(layout) != "stored":
        pytest.skip("this core has no such blocks")
    _, dense = float4_files.save(tmp_path, layout, num_hidden_layers=1)
    text = tiny_models.text(tmp_path, "native", "stored")
    layer = "model.layers.0."
    for which, names in {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "output": ("self_attn.o_proj",),
        "down": ("mlp.down_proj",),
    }.items():
        parts = torch.cat([dense[f"{layer}{name}.weight"] for name in names])
        out = text.model.packed.linears(which, 127.0 * torch.eye(parts.shape[1])) / 127.0
        most = float(parts.abs().max())
        # NF4's values are kept to 16 bits, all others exactly.
        allowed = {"rtol": 0.0, "atol": most * 2.0**-16} if "nf4" in layout else {"rtol": 1e-6, "atol": 0.0}
        torch.testing.assert_close(out[:, : len(parts)], parts.t(), **allowed, msg=which)


def test_modelopt_says_it_in_its_own_file(tmp_path: Path) -> None:
    """Older versions write hf_quant_config.json, and nothing into config.json."""
    _, dense = float4_files.save(tmp_path, "modelopt")
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["quantization_config"]
    path.write_text(json.dumps(config))
    named = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    (tmp_path / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": named})
    )
    read = dict(open_checkpoint(str(tmp_path)).tensors())
    for name, expected in dense.items():
        torch.testing.assert_close(read[name], expected, rtol=3e-7, atol=0)


def test_negative_scales(tmp_path: Path) -> None:
    """Nobody writes them, but E4M3 has a sign: it is that of 16 weights, not of nothing."""
    _, dense = float4_files.save(tmp_path, "nvfp4", num_hidden_layers=1)
    name = "model.layers.0.mlp.down_proj.weight"
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[f"{name}_scale"].view(torch.uint8)[:, 3] |= 128
    save_file(tensors, path, metadata={"format": "pt"})
    dense[name][:, 48:64] *= -1
    checkpoint = open_checkpoint(str(tmp_path))
    torch.testing.assert_close(dict(checkpoint.tensors([name]))[name], dense[name], rtol=3e-7, atol=0)
    if HAS_NATIVE and kept_as("nvfp4") == "stored":
        out = (
            tiny_models.text(tmp_path, "native", "stored").model.packed.linears("down", 127.0 * torch.eye(512)) / 127.0
        )
        torch.testing.assert_close(out[:, :256], dense[name].t(), rtol=1e-6, atol=0)


UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "AWQ beside NVFP4": ({"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}, "its quant_algo is NVFP4_AWQ"),
    "norms of their own": ({"quant_method": "bitnet", "use_rms_norm": True}, "a norm of its own before it"),
    "not packed": (
        {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"},
        "whose weights are not packed",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_said(name: str, tmp_path: Path) -> None:
    """The error is one line with the reason and what to do."""
    declared, reason = UNREADABLE[name]
    tiny_models.save(tmp_path, "llama")
    declare(tmp_path, declared)
    with pytest.raises(IpexAssistError, match=re.escape(reason)) as raised:
        open_checkpoint(str(tmp_path)).shapes()
    assert "ipex-assist quantize" in str(raised.value)


Q = "model.layers.1.self_attn.q_proj."
STATE = "weight.quant_state.bitsandbytes__nf4"


def _state(**changes: Any) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        state = json.loads(bytes(tensor.tolist())) | changes
        return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)

    return change


DAMAGES: dict[str, tuple[str, str, Any, str]] = {
    "NVFP4 without scales": ("nvfp4", "weight_scale", lambda t: None, "weight_scale is not"),
    "NVFP4 without the scale of all": ("nvfp4", "weight_global_scale", lambda t: None, "has 0 of"),
    "NVFP4 with many scales of all": ("nvfp4", "weight_global_scale", lambda t: t.repeat(2), "not one number"),
    "NVFP4 by zero": ("nvfp4", "weight_global_scale", lambda t: t * 0, "not all finite"),
    "NVFP4 with scales that are NaN": (
        *("nvfp4", "weight_scale"),
        lambda t: torch.full_like(t.view(torch.uint8), 127).view(torch.float8_e4m3fn),
        "not all finite",
    ),
    "NVFP4 with scales in bf16": ("nvfp4", "weight_scale", lambda t: t.bfloat16(), "weight_scale is BF16"),
    "NVFP4 with scales of another matrix": ("nvfp4", "weight_scale", lambda t: t[:, :-1], "have the shapes"),
    "NVFP4 with a short matrix": ("nvfp4", "weight_packed", lambda t: t[:, :-3], "have the shapes"),
    "modelopt by infinity": ("modelopt", "weight_scale_2", lambda t: t * float("inf"), "not all finite"),
    "rows scaled before": ("modelopt", "pre_quant_scale", lambda t: torch.ones(256), "rows are scaled before"),
    "MXFP4 with a NaN": ("mxfp4", "weight_scale", lambda t: torch.full_like(t, 255), "a scale is NaN"),
    "NF4 without a map": ("nf4", "weight.quant_map", lambda t: None, "weight.quant_map has the shape None"),
    "NF4 with a short map": ("nf4", "weight.quant_map", lambda t: t[:8], "weight.quant_map has the shape (8,)"),
    "NF4 with a map of NaN": ("nf4", "weight.quant_map", lambda t: t * float("nan"), "not all finite"),
    "NF4 without scales": ("nf4", "weight.absmax", lambda t: None, "weight.absmax has the shape None"),
    "NF4 with scales cut off": ("nf4", "weight.absmax", lambda t: t[:-1], "weight.absmax has the shape"),
    "NF4 with scales of nothing": ("nf4", "weight.nested_absmax", lambda t: None, "weight.nested_absmax has the shape"),
    "NF4 with infinite scales": ("nf4", "weight.nested_absmax", lambda t: t / 0, "not all finite"),
    "NF4 with a short second map": ("nf4", "weight.nested_quant_map", lambda t: t[:16], "nested_quant_map has the"),
    "NF4 with half its bytes": ("nf4", "weight", lambda t: t[: len(t) // 2], "bytes for"),
    "NF4 of another shape": ("nf4", STATE, _state(shape=[255, 256]), "has the shape"),
    "NF4 of a shape that is none": ("nf4", STATE, _state(shape=[-1, "a"]), "has the shape"),
    "NF4 in blocks of nothing": ("nf4", STATE, _state(blocksize=0), "in blocks of 0"),
    "NF4 in other blocks": ("nf4", STATE, _state(blocksize=128), "weight.absmax has the shape"),
    "NF4 plus NaN": ("nf4", STATE, _state(nested_offset=float("nan")), "plus nan"),
    "NF4 with scales in blocks of a text": ("nf4", STATE, _state(nested_blocksize="256"), "scales in blocks of 256"),
    "NF4 with no JSON": ("nf4", STATE, lambda t: t[:-3], "cannot be read"),
    "NF4 with a list": ("nf4", STATE, lambda t: torch.tensor(list(b"[1]"), dtype=torch.uint8), "it is no object"),
    "LLM.int8 with scales cut off": ("llm-int8", "SCB", lambda t: t[:-1], "has the shape (255,)"),
    "LLM.int8 with NaN": ("llm-int8", "SCB", lambda t: t * float("nan"), "not all finite"),
    "LLM.int8 in floats": ("llm-int8", "weight", lambda t: t.float(), "has the shape"),
    "BitNet with a fourth value": ("bitnet", "weight", lambda t: t | 3, "not -1, 0 or 1"),
    "BitNet by zero": ("bitnet", "weight_scale", lambda t: t * 0, "no finite number"),
    "BitNet with many scales": ("bitnet", "weight_scale", lambda t: t.repeat(3), "have the shapes"),
    "BitNet in floats": ("bitnet", "weight", lambda t: t.float(), "have the shapes"),
}


def _checked(folder: Path) -> Any:
    checkpoint = open_checkpoint(str(folder))
    checkpoint.check_weights()
    return checkpoint.tensors()


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_tensors_are_refused(name: str, tmp_path: Path) -> None:
    """Each field of each layout: an error that says which, never a number that looks right."""
    layout, part, change, reason = DAMAGES[name]
    float4_files.save(tmp_path, layout)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    changed = change(tensors.pop(Q + part, None))
    save_file(tensors | ({} if changed is None else {Q + part: changed.contiguous()}), path, metadata={"format": "pt"})
    with pytest.raises(IpexAssistError, match=re.escape(reason)) as raised:
        list(_checked(tmp_path))
    assert "\n" not in str(raised.value)
