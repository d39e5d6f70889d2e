"""GGUF of every family: written as llama.cpp's converter does, read back as the checkpoint they were made of."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy
import pytest
import tiny_models
import torch
from checkpoint_files import finish, permute
from gguf import GGMLQuantizationType as Type
from gguf.quants import quantize

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.rope import RotaryTable
from ipex_assist.models.spec import DecoderSpec

pytestmark = pytest.mark.one_stack

# What the file cannot say, it says by the number of layers: the scale is by head_dim.
EVEN = {"query_pre_attn_scalar": 32}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", EVEN),
    "gemma3": ("gemma3", EVEN),
    "granite": ("granite", {}),
    "granite-biases": ("granite", {}),
    "olmo2": ("olmo2", {}),
    "smollm3": ("smollm3", {"no_rope_layer_interval": 4}),
    "starcoder2": ("starcoder2", {}),
    "starcoder2-window": ("starcoder2", {}),
    "stablelm": ("stablelm", {}),
    "stablelm-parallel": ("stablelm", {}),
    "phi3": ("phi3", {}),
    "phi3-longrope": ("phi3", {}),
    "phi3-partial": ("phi3", {}),
    "exaone4": ("exaone4", {}),
    "exaone4-full": ("exaone4", {}),
    "cohere": ("command-r", {}),
    "cohere-norms": ("command-r", {}),
    "cohere2": ("cohere2", {}),
    "glm4": ("glm4", {}),
    "glm": ("chatglm", {}),
    "phi": ("phi2", {"num_key_value_heads": 4}),
    "gpt2": ("gpt2", {}),
    "gpt2-untied": ("gpt2", {"scale_attn_weights": True}),
    "gpt-neox": ("gptneox", {}),
    "gpt-neox-serial": ("gptneox", {"attention_bias": True}),
    "falcon": ("falcon", {}),
    "falcon-new": ("falcon", {"bias": False}),
    "falcon-one-norm": ("falcon", {}),
    "bloom": ("bloom", {}),
    "mpt": ("mpt", {}),
    "mixtral": ("llama", {}),
    "qwen2-moe": ("qwen2moe", {}),
    "qwen3-moe": ("qwen3moe", {}),
    "olmoe": ("olmoe", {}),
    "granitemoe": ("granitemoe", {}),
    "gpt-oss": ("gpt-oss", {}),
    "olmo3": ("olmo2", {}),
    "olmo3-yarn": ("olmo2", {}),
    "seed-oss": ("seed_oss", {}),
    "seed-oss-biases": ("seed_oss", {}),
    "ernie4-5": ("ernie4_5", {}),
    "ernie4-5-biases": ("ernie4_5", {}),
    "hunyuan": ("hunyuan-dense", {}),
    "hunyuan-alpha": ("hunyuan-dense", {}),
    "arcee": ("arcee", {}),
    "arcee-biases": ("arcee", {}),
    "exaone": ("exaone", {}),
    "jais2": ("jais2", {}),
    "jais2-no-biases": ("jais2", {}),
    "nemotron": ("nemotron", {}),
    "nemotron-whole": ("nemotron", {"hidden_act": "relu2"}),
    "olmo": ("olmo", {}),
}
TRANSPOSED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")


def write(folder: Path, model: Any, arch: str, fused: bool = False, extra: dict[str, Any] | None = None) -> Path:
    """What conversion/ of llama.cpp writes for this model, in F32. fused: with --fuse-qkv, and in Q8_0."""
    checkpoint, config = open_checkpoint(str(folder)), model.config
    spec = checkpoint.decoder_spec()
    layer = spec.layers[0]
    path = folder / "model.gguf"
    writer = gguf.GGUFWriter(path, arch)
    writer.add_context_length(spec.max_position_embeddings)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_block_count(spec.num_hidden_layers)
    writer.add_feed_forward_length(layer.each_mlp.intermediate_size)
    writer.add_head_count(layer.attention.heads)
    writer.add_head_count_kv(layer.attention.kv_heads)
    writer.add_key_length(layer.attention.head_dim)
    writer.add_value_length(layer.attention.head_dim)
    (writer.add_layer_norm_rms_eps if spec.norm == "rms" else writer.add_layer_norm_eps)(spec.norm_eps)
    if spec.ropes:
        add_rope(writer, model, arch, spec)
    if layer.attention.alibi_slopes and arch == "mpt":
        writer.add_max_alibi_bias(8.0)
    if spec.experts is not None:
        writer.add_expert_count(spec.experts.count)
        writer.add_expert_used_count(spec.experts.per_token)
    if arch == "gptneox":
        writer.add_parallel_residual(layer.parallel)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch.startswith("granite"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if arch in ("command-r", "cohere2"):
        writer.add_logit_scale(config.logit_scale)
    for key, value in (extra or {}).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_tensor)(key, value)
    add_tensors(writer, checkpoint, model, arch, fused)
    finish(writer)
    return path


def add_rope(writer: gguf.GGUFWriter, model: Any, arch: str, spec: DecoderSpec) -> None:
    """Positions, and the windows that go with them."""
    config = model.config
    rope = spec.ropes[0]
    writer.add_rope_freq_base(rope.theta)
    writer.add_rope_dimension_count(spec.layers[0].attention.rotary_size)
    if rope.kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope.scaling["factor"])
    if arch == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        writer.add_sliding_window(config.sliding_window or 0)
    if rope.kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope.scaling["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope.scaling["original_max_position_embeddings"])
    if rope.kind == "longrope":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_attn_factors(RotaryTable(spec).rules[0].attention_factor)
        for name in ("short", "long"):
            factors = numpy.array(rope.scaling[f"{name}_factor"], dtype=numpy.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)
    elif (window := getattr(config, "sliding_window", None)) is not None and arch != "phi3":
        writer.add_sliding_window(window)
        if arch in ("gemma3", "exaone4", "cohere2", "olmo2"):
            pattern = [kind == "sliding_attention" for kind in config.layer_types]
            writer.add_array(f"{arch}.attention.sliding_window_pattern", pattern)


def stacked_experts(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts' matrices of a layer as one tensor, and Granite's gate and up apart."""
    found: dict[str, list[torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if "block_sparse_moe.input_linear" in name:
            for leaf, part in zip(("w1", "w3"), tensor.chunk(2, dim=1), strict=True):
                found[name.replace("input_linear", f"experts.{leaf}")] = list(part)
        elif part := re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?", name):  # gpt-oss: (in, out), by turns
            values, suffix = (tensor, "bias") if part[3] else (tensor.transpose(1, 2), "weight")
            for first, leaf in enumerate(("gate", "up") if part[2] == "gate_up" else ("down",)):
                rows = values[:, first::2] if part[2] == "gate_up" else values
                found[f"{part[1]}.{leaf}_proj.{suffix}"] = list(rows)
        elif name.endswith(".sinks"):
            found[f"{name}.weight"] = [tensor]
        elif "block_sparse_moe.output_linear" in name:
            found[name] = list(tensor)
        else:
            found.setdefault(re.sub(r"\.experts\.\d+\.", ".experts.", name), []).append(tensor)
    together = ("experts.", "output_linear")
    return {
        name: torch.stack(each) if any(word in name for word in together) else each[0] for name, each in found.items()
    }


def add_tensors(writer: gguf.GGUFWriter, checkpoint: Checkpoint, model: Any, arch: str, fused: bool) -> None:
    """By the converter's names, norms and order of rows."""
    config, kv_heads = model.config, checkpoint.decoder_spec().layers[0].attention.kv_heads
    key = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    name_map = gguf.get_tensor_name_map(key, config.num_hidden_layers)
    parts: dict[str, numpy.ndarray] = {}
    for name, tensor in stacked_experts(dict(checkpoint.tensors())).items():
        values = tensor.float().numpy()
        if arch.startswith(("gemma", "nemotron")) and name.endswith("norm.weight"):
            values = values + 1
        if arch in ("llama", "granite", "granitemoe", "smollm3", "arcee", "olmo") and (
            ".q_proj." in name or ".k_proj." in name
        ):
            heads = config.num_attention_heads if ".q_proj." in name else config.num_key_value_heads
            values = permute(values, heads)
        if arch in ("gptneox", "falcon", "bloom") and ".query_key_value." in name:
            values = by_kind(values, config.num_attention_heads, kv_heads if arch == "falcon" else None)
        if arch == "gpt2" and name.endswith(TRANSPOSED):
            values = values.T
        if arch == "bloom":
            name = name.removeprefix("transformer.")
        if name.endswith("shared_expert_gate.weight"):
            values = values.squeeze(0)
        stored = name_map.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored, name
        if fused and any(f".attn_{part}." in stored for part in "qkv"):
            parts[stored] = values
        else:
            writer.add_tensor(stored, numpy.ascontiguousarray(values))
    for stored in [name for name in parts if ".attn_q." in name]:
        values = numpy.concatenate([parts[stored.replace(".attn_q.", f".attn_{part}.")] for part in "qkv"])
        kind = Type.Q8_0 if values.ndim == 2 else Type.F32
        writer.add_tensor(stored.replace(".attn_q.", ".attn_qkv."), quantize(values, kind), raw_dtype=kind)


def by_kind(values: numpy.ndarray, heads: int, groups: int | None) -> numpy.ndarray:
    """modify_tensors() of conversion/falcon.py: all queries, all keys, all values."""
    groups = groups or heads
    rest = values.shape[1:]
    qkv = values.reshape(groups, heads // groups + 2, -1, *rest)
    return numpy.concatenate([qkv[:, part].reshape(-1, *rest) for part in (slice(-2), -2, -1)])


def one_by_one(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Experts by the names under which they are read."""
    leaves = {"w1": "gate_proj", "w3": "up_proj", "output_linear": "down_proj"}
    found: dict[str, torch.Tensor] = {}
    for name, tensor in stacked_experts(tensors).items():
        place, leaf, suffix = f".{name}".rsplit(".", 2)
        place = place[1:]
        if "experts" in place or leaf in leaves:
            place = place if place.endswith("experts") else f"{place}.experts"
            found |= {f"{place}.{i}.{leaves.get(leaf, leaf)}.{suffix}": each for i, each in enumerate(tensor)}
        else:
            found[name] = tensor
    return found


def flat(part: Any, name: str = "spec") -> dict[str, Any]:
    """Every value of a spec and of its parts, by its place."""
    inner: dict[str, Any] = {}
    if is_dataclass(part):
        inner = {field.name: getattr(part, field.name) for field in fields(part)}
    elif isinstance(part, tuple):
        inner = dict(enumerate(part))
    found: dict[str, Any] = {name: type(part)} if inner else {name: part}
    for key, value in inner.items():
        found |= flat(value, f"{name}.{key}")
    return found


@pytest.mark.parametrize("variant", tiny_models.known(*VARIANTS))
def test_a_file_is_the_checkpoint_it_was_made_of(variant: str, tmp_path: Path) -> None:
    """Every field of the spec, the angles, and every tensor."""
    arch, changes = VARIANTS[variant]
    model = tiny_models.save(tmp_path, variant, **changes)
    original, read = open_checkpoint(str(tmp_path)), open_checkpoint(str(write(tmp_path, model, arch)))
    spec, expected = read.decoder_spec(), original.decoder_spec()
    found, wanted = flat(spec), flat(expected)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        if not name.startswith("spec.ropes"):
            assert found[name] == pytest.approx(value), name
    tables = (RotaryTable(each) for each in (spec, expected) if expected.ropes)
    for got, right in zip(*(each.rows(0, 40, 30) for each in tables), strict=True):  # none where nothing turns
        torch.testing.assert_close(got, right, atol=1e-5, rtol=1e-5)
    stored = dict(original.tensors())
    stored = one_by_one(stored) if variant in ("granitemoe", "gpt-oss") else stored
    for name, tensor in read.tensors():
        written = stored.pop(name if name in stored else "lm_head.weight")  # GPT-NeoX's head has two names
        torch.testing.assert_close(tensor.float(), written, atol=1e-6, rtol=0)
        assert tuple(tensor.shape) == read.shapes()[name]
    assert not stored
    read.check_weights()


@pytest.mark.parametrize(("variant", "arch"), [("llama-biases", "llama"), ("glm", "chatglm")])
def test_query_key_and_value_in_one_tensor(variant: str, arch: str, tmp_path: Path) -> None:
    """Would catch parts cut at wrong rows of quantized blocks, and q and k left interleaved in them."""
    model = tiny_models.save(tmp_path, variant)
    read = open_checkpoint(str(write(tmp_path, model, arch, fused=True)))
    read.check_weights()
    stored = dict(open_checkpoint(str(tmp_path)).tensors())
    assert read.names().count("model.layers.0.self_attn.v_proj.weight") == 1
    for name, tensor in read.tensors():
        near = 0.02 if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else 1e-6
        torch.testing.assert_close(tensor.float(), stored.pop(name), atol=near, rtol=0)
    assert not stored


def test_what_nothing_reads_is_refused(tmp_path: Path) -> None:
    """A bias that the family does not add, and a scale, change what a model says as any weight does."""
    model = tiny_models.save(tmp_path, "qwen2")
    bias = {"blk.0.ffn_up.bias": numpy.zeros(96, dtype=numpy.float32)}
    with pytest.raises(IpexAssistError, match=r"1 tensors are of no use .* first is model.layers.0.mlp.up_proj.bias"):
        open_checkpoint(str(write(tmp_path, model, "qwen2", extra=bias))).check_weights()
    scale = {"blk.0.ffn_up.scale": numpy.ones(1, dtype=numpy.float32)}
    with pytest.raises(IpexAssistError, match=r"do not belong to a qwen2 model, the first is blk.0.ffn_up.scale"):
        open_checkpoint(str(write(tmp_path, model, "qwen2", extra=scale)))
    model = tiny_models.save(tmp_path, "qwen3-moe")
    with pytest.raises(IpexAssistError, match=r"expert_group_count is 4.0, a routing of experts that is not computed"):
        open_checkpoint(str(write(tmp_path, model, "qwen3moe", extra={"qwen3moe.expert_group_count": 4.0})))
    model = tiny_models.save(tmp_path, "mpt")
    clipped = open_checkpoint(str(write(tmp_path, model, "mpt", extra={"mpt.attention.clamp_kqv": 8.0})))
    assert "clip_qkv" in str(clipped.why_not_ours())
