"""GPTQ and AWQ checkpoints: the very numbers that are stored reach the core, and what cannot be read is said."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import checkpoint_files
import pytest
import quantized_files
import tiny_models
import torch
from checkpoint_files import VOCAB_SIZE, tiny_tokenizer
from conftest import HAS_NATIVE
from hypothesis import given, settings
from hypothesis import strategies as st
from quantized_files import PROMPT, reference_logits, relative
from safetensors.torch import load_file, save_file

import ipex_assist
from ipex_assist import cli
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.quantized import QuantizedCheckpoint, read_scheme
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.select_executor import stored_precision
from ipex_assist.quantization import gptq
from ipex_assist.quantization.block_numbers import INT2_32, INT2_128, INT3_32, INT3_128
from ipex_assist.quantization.int4_weight import Int4Weight

needs_native = pytest.mark.skipif(not HAS_NATIVE, reason="the native core needs AVX2")

# Every way the hub's checkpoints are stored: format, group, symmetric or not, act-order.
CASES: dict[str, dict[str, Any]] = {
    "gptq": {},
    "gptq-64": {"group": 64},
    "gptq-32-sym": {"group": 32, "sym": True},
    "gptq-column": {"group": -1},
    "gptq-act-order": {"act_order": True},
    "gptq-act-order-32": {"act_order": True, "group": 32, "sym": True},
    "gptq-act-order-column": {"act_order": True, "group": -1},
    "gptq-v2": {"kind": "gptq_v2", "group": 64},
    "awq": {"kind": "awq"},
    "awq-32-sym": {"kind": "awq", "group": 32, "sym": True},
    "awq-qwen2-tied": {"kind": "awq", "variant": "qwen2-tied"},
    "gptq-qwen3": {"variant": "qwen3", "group": 64},
    "gptq-opt": {"variant": "opt", "group": 32},
    "gptq-bigcode": {"variant": "gpt-bigcode", "group": 32},
    "gptq-bigcode-mha": {"variant": "gpt-bigcode-mha", "group": 32},
    "gptq-qwen2-moe": {"variant": "qwen2-moe", "group": 32},
    "gptq-mixtral-act-order": {"variant": "mixtral", "group": 32, "act_order": True},
    "gptq-2-bits": {"bits": 2, "group": 32},
    "gptq-3-bits": {"bits": 3, "group": 64},
    "gptq-3-bits-sym": {"bits": 3, "group": 32, "sym": True},
    "gptq-3-bits-v2-act-order": {"bits": 3, "kind": "gptq_v2", "group": 32, "act_order": True},
    "gptqmodel-3-bits": {"bits": 3, "group": 32, "model_ones": True},
    "gptqmodel-3-bits-sym": {"bits": 3, "group": 32, "sym": True, "model_ones": True},
}
# What needs more than the core's int4: integers of 8 bits in groups, alone or beside others.
IN_BLOCKS: dict[str, dict[str, Any]] = {
    "gptq-8-bits-sym": {"bits": 8, "group": 64, "sym": True},
    "gptq-8-bits-v2": {"bits": 8, "group": 32, "sym": True, "kind": "gptq_v2"},
    "gptq-2-4-8-bits": {
        "bits": lambda name: 8 if "down_proj" in name else 4 if "layers.0" in name else 2,
        "group": 32,
        "sym": True,
    },
    "gptq-8-bits-beside-4-with-zeros": {"bits": lambda name: 8 if "v_proj" in name else 4, "group": 32},
}
# Fewer bits than int4 has, the blocks that hold them, and bytes of a weight.
WIDE = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 8, "num_key_value_heads": 4}
FEW: dict[str, tuple[dict[str, Any], int, float]] = {
    "2-bits-sym": ({"bits": 2, "sym": True} | WIDE, INT2_128, 34 / 128),
    "2-bits-sym-v2-row": ({"bits": 2, "group": -1, "sym": True, "kind": "gptq_v2"} | WIDE, INT2_128, 34 / 128),
    "2-bits-sym-64": ({"bits": 2, "group": 64, "sym": True}, INT2_32, 10 / 32),
    "2-bits": ({"bits": 2, "group": 128} | WIDE, INT3_128, 50 / 128),
    "2-bits-32": ({"bits": 2, "group": 32}, INT3_32, 14 / 32),
    "3-bits-sym": ({"bits": 3, "sym": True} | WIDE, INT3_128, 50 / 128),
    "gptqmodel-3-bits-sym-32": ({"bits": 3, "group": 32, "sym": True, "model_ones": True}, INT3_32, 14 / 32),
}


@pytest.mark.parametrize("case", CASES)
def test_tensors_are_the_stored_numbers(case: str, tmp_path: Path) -> None:
    """Bit order, zero convention, group index: a slip in any of them gives another matrix."""
    _, stored = quantized_files.save(tmp_path, **CASES[case])
    checkpoint = open_checkpoint(str(tmp_path))
    assert isinstance(checkpoint, QuantizedCheckpoint)
    read = dict(checkpoint.tensors())
    assert stored.keys() <= read.keys()
    for name, w in stored.items():
        assert torch.equal(read[name], w.weight), name
    assert {name: tuple(tensor.shape) for name, tensor in read.items()} == checkpoint.shapes()
    assert not any(name.endswith(("qweight", "qzeros", "scales", "g_idx")) for name in read)


@pytest.mark.parametrize("case", IN_BLOCKS)
def test_integers_of_other_sizes_are_the_stored_numbers(case: str, tmp_path: Path) -> None:
    """As above: 8 bits, and files whose linears differ in their bits, as auto-round's extra_config has them."""
    _, stored = quantized_files.save(tmp_path, **IN_BLOCKS[case])
    read = dict(open_checkpoint(str(tmp_path)).tensors())
    assert all(torch.equal(read[name], w.weight) for name, w in stored.items())


@needs_native
@pytest.mark.parametrize("case", IN_BLOCKS)
def test_integers_of_other_sizes_in_the_core(case: str, tmp_path: Path) -> None:
    """Those whose values less their zeros fit are kept in blocks, to the last bit; others become bf16, rightly."""
    model, stored = quantized_files.save(tmp_path, num_hidden_layers=1, **IN_BLOCKS[case])
    checkpoint = open_checkpoint(str(tmp_path))
    zeros = case == "gptq-8-bits-beside-4-with-zeros"  # from -255 to 255: no bytes
    assert stored_precision(checkpoint, "native") == ("bf16" if zeros else "stored")
    text = tiny_models.text(tmp_path, "native", "bf16" if zeros else "stored")
    expected = reference_logits(model)
    assert relative(text.forward(PROMPT, last=len(PROMPT)), expected) < 0.07
    if zeros:
        return
    down = stored["model.layers.0.mlp.down_proj.weight"].weight
    out = text.model.packed.linears("down", 127.0 * torch.eye(down.shape[1])) / 127.0
    # 127 times a value of 8 bits and a scale of 11 is rounded to fp32's 24.
    torch.testing.assert_close(out[:, : len(down)], down.t(), rtol=2e-7, atol=0)


def test_eight_bits_with_zeros_are_the_stored_numbers(tmp_path: Path) -> None:
    """Zeros that are not 128 are no part of the core's int8; the floats are right all the same, and it is said."""
    _, stored = quantized_files.save(tmp_path, bits=8, group=32)
    checkpoint = open_checkpoint(str(tmp_path))
    assert isinstance(checkpoint, QuantizedCheckpoint)
    assert checkpoint.stored_precision is None
    assert checkpoint.described == "8-bit integers with groups of 32"
    read = dict(checkpoint.tensors())
    assert all(torch.equal(read[name], w.weight) for name, w in stored.items())


def declare_symmetric(folder: Path) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["quantization_config"]["sym"] = True
    path.write_text(json.dumps(config))


def test_three_bits_that_fit_no_program(tmp_path: Path) -> None:
    """Symmetric by the config, with other zeros by either reading of them: refused rather than guessed."""
    quantized_files.save(tmp_path, bits=3, group=32)
    declare_symmetric(tmp_path)
    with pytest.raises(IpexAssistError, match="its zeros are not 4"):
        list(open_checkpoint(str(tmp_path)).tensors())


@needs_native
@pytest.mark.parametrize("case", CASES)
def test_logits_of_the_core(case: str, tmp_path: Path) -> None:
    """Against transformers with the dequantized weights: what is left is the rounding of rows to int8.

    Rounding the weights to int8 as well is worse. One wrong scale, order or zero point in any linear, or quantizing the
    weights once more, is far worse (0.1 to 0.5 here).
    """
    model, _ = quantized_files.save(tmp_path, **CASES[case])
    expected = reference_logits(model)
    precision = stored_precision(open_checkpoint(str(tmp_path)), "native")
    assert precision == ("stored" if case in ("gptq-2-bits", "gptq-3-bits-sym", "gptqmodel-3-bits-sym") else "int4")
    text = tiny_models.text(tmp_path, "native", precision)
    prompt = relative(text.forward(PROMPT, last=len(PROMPT)), expected)
    text.truncate(0)
    steps = relative(torch.cat([text.forward([token]) for token in PROMPT]), expected)  # the other path
    in_int8 = tiny_models.text(tmp_path, "native", "int8").forward(PROMPT, last=len(PROMPT))
    assert max(prompt, steps) < min(0.07, relative(in_int8, expected))


@needs_native
@pytest.mark.parametrize("case", FEW)
def test_two_and_three_bits_take_no_four(case: str, tmp_path: Path) -> None:
    """Bits in another order, a scale of other columns, zeros forgotten; or right, and twice as large as the file."""
    changes, number, size = FEW[case]
    _, stored = quantized_files.save(tmp_path, num_hidden_layers=1, **changes)
    checkpoint = open_checkpoint(str(tmp_path))
    assert stored_precision(checkpoint, "native") == "stored"
    text = tiny_models.text(tmp_path, "native", "stored")
    packed = text.model.packed
    for which, names in {"output": ("self_attn.o_proj",), "down": ("mlp.down_proj",)}.items():
        expected = torch.cat([stored[f"model.layers.0.{name}.weight"].weight for name in names])
        assert packed.format_of(f"layers.0.{names[0].rpartition('.')[2]}.weight") == number
        out = packed.linears(which, 127.0 * torch.eye(expected.shape[1])) / 127.0
        torch.testing.assert_close(out[:, : len(expected)], expected.t(), rtol=2e-7, atol=0)
        few = packed.linears(which, 127.0 * torch.eye(expected.shape[1])[:3]) / 127.0
        assert torch.equal(few, out[:3]), "rows are looked at one by one"
    columns = sum(w.q.numel() for w in stored.values())
    plain = tiny_models.text(tmp_path, "native", "bf16").model.packed.nbytes - 2 * columns
    padding = 1 if "hidden_size" in changes else 1.34  # 192 and 160 columns take 256
    assert packed.nbytes - plain <= padding * size * columns + 40 * 4096


@needs_native
def test_two_bits_that_blocks_do_not_hold(tmp_path: Path) -> None:
    """One linear whose columns are in another order: all stay in int4, which has a place for that, and not in bf16."""
    quantized_files.save(tmp_path, bits=2, group=32, sym=True, act_order=True)
    assert stored_precision(open_checkpoint(str(tmp_path)), "native") == "int4"


@needs_native
def test_two_bits_that_are_not_what_their_config_says(tmp_path: Path) -> None:
    """Symmetric by the config, with other zeros: values from -3 to 3 would lose a bit."""
    quantized_files.save(tmp_path, bits=2, group=32)
    declare_symmetric(tmp_path)
    with pytest.raises(IpexAssistError, match=r"not all from -2 to 1; is it symmetric, as config\.json says"):
        tiny_models.text(tmp_path, "native", "stored")


@needs_native
@pytest.mark.parametrize(
    "case", ["gptq", "gptq-32-sym", "gptq-column", "gptq-act-order", "gptq-act-order-32", "awq", "awq-32-sym"]
)
def test_the_core_keeps_every_bit(case: str, tmp_path: Path) -> None:
    """A row with a single 1 picks one column of weights out of a linear: equal to the last bit, in every linear."""
    _, stored = quantized_files.save(tmp_path, num_hidden_layers=1, **CASES[case])
    text = tiny_models.text(tmp_path, "native", "int4")
    layer = "model.layers.0."
    for which, names in {
        "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "output": ("self_attn.o_proj",),
        "down": ("mlp.down_proj",),
    }.items():
        parts = [stored[f"{layer}{name}.weight"].weight for name in names]
        # 127 is 1 in int8 with a scale of 1, so that nothing is rounded.
        out = text.model.packed.linears(which, 127.0 * torch.eye(parts[0].shape[1])) / 127.0
        assert torch.equal(out[:, : sum(len(part) for part in parts)], torch.cat(parts).t()), which
    gate, up = (stored[f"{layer}mlp.{name}.weight"].weight for name in ("gate_proj", "up_proj"))
    out = text.model.packed.linears("up", 127.0 * torch.eye(gate.shape[1])) / 127.0
    turns = out[:, : 2 * len(gate)].view(len(out), -1, 2, 16)
    assert torch.equal(turns[:, :, 0].flatten(1), gate.t())
    assert torch.equal(turns[:, :, 1].flatten(1), up.t())


@needs_native
def test_orders_that_differ_within_a_linear_are_rounded_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """GPTQ writes no such file, but if one comes, it is said, and costs some precision instead of being wrong."""
    model, _ = quantized_files.save(tmp_path, act_order="each", group=64)
    with caplog.at_level("WARNING", "ipex_assist"):
        text = tiny_models.text(tmp_path, "native", "int4")
    assert "6 matrices are rounded to 4 bits in groups of 64" in caplog.text  # k, v and up of two layers
    logits, expected = text.forward(PROMPT, last=len(PROMPT)), reference_logits(model)
    assert 0.1 < relative(logits, expected) < 0.5  # 0.30 measured; 0.05 where orders are shared


@needs_native
def test_floats_among_the_quantized(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """modules_to_not_convert: a matrix of floats in a layer is rounded to 4 bits, and that is said."""
    model, stored = quantized_files.save(tmp_path, group=32, keep=("0.mlp.down_proj.weight",))
    assert "model.layers.0.mlp.down_proj.weight" not in stored
    with caplog.at_level("WARNING", "ipex_assist"):
        text = tiny_models.text(tmp_path, "native", "int4")
    assert "1 matrices are rounded to 4 bits" in caplog.text
    assert "layers.0.mlp.down_proj" in caplog.text
    assert relative(text.forward(PROMPT, last=len(PROMPT)), reference_logits(model)) < 0.2


@needs_native
def test_a_quantized_head_stays_as_it_is(tmp_path: Path) -> None:
    """auto-round and GPTQModel can quantize lm_head, too; it is not rounded to int8 then."""
    model, _ = quantized_files.save(tmp_path, group=32)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    w = quantized_files.quantize(tensors.pop("lm_head.weight"), 32, sym=True, order=None)
    tensors |= {f"lm_head.{part}": t for part, t in quantized_files.gptq_tensors(w, v2=False).items()}
    save_file(tensors, path, metadata={"format": "pt"})
    model.lm_head.weight.data.copy_(w.weight)
    text = tiny_models.text(tmp_path, "native", "int4")
    assert relative(text.forward(PROMPT, last=len(PROMPT)), reference_logits(model)) < 0.07


@needs_native
@pytest.mark.parametrize("case", ["gptq-act-order", "awq"])
def test_any_split_gives_the_same_bits(case: str, tmp_path: Path) -> None:
    """Losslessness with columns in an order of their own: rows of a step have the bits they get alone."""
    quantized_files.save(tmp_path, **CASES[case])
    text = tiny_models.text(tmp_path, "native", "int4")
    alone = torch.cat([text.forward([token]) for token in PROMPT[:16]])
    for size in (2, 5, 8, 16):
        text.truncate(0)
        chunks = [PROMPT[i : min(i + size, 16)] for i in range(0, 16, size)]
        assert torch.equal(torch.cat([text.forward(chunk, last=len(chunk)) for chunk in chunks]), alone), size


@needs_native
def test_the_packed_copy_of_an_act_order_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--cache-packed keeps the orders as well: the second load reads no weights and gives the same bits."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quantized_files.save(tmp_path / "m", act_order=True)
    checkpoint = open_checkpoint(str(tmp_path / "m"))
    logits = []
    for _ in range(2):
        model = load_model(LoadRequest(checkpoint, "int4", "native", cache_packed=True))
        logits.append(model.extend(model.new_sequence(64), PROMPT, last=len(PROMPT)))
        monkeypatch.setattr(QuantizedCheckpoint, "stored", lambda *_: pytest.fail("the checkpoint was read again"))
    assert torch.equal(*logits)


def test_other_executors_dequantize(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On torch the default is bf16, with a word about it; fp32 has transformers' logits."""
    model, _ = quantized_files.save(tmp_path, act_order=True)
    with caplog.at_level("WARNING", "ipex_assist"):
        assert stored_precision(open_checkpoint(str(tmp_path)), "torch") == "bf16"
    assert "its weights become bf16" in caplog.text
    text = tiny_models.text(tmp_path, "torch", "fp32")
    assert relative(text.forward(PROMPT, last=len(PROMPT)), reference_logits(model)) < 1e-4


@needs_native
def test_load_takes_the_stored_precision(tmp_path: Path) -> None:
    """`load` without a precision keeps the 4 bits, of the target and of the assistant; one that is given wins."""
    quantized_files.save(tmp_path, vocab_size=VOCAB_SIZE)
    tiny_tokenizer().save_pretrained(tmp_path)
    model = ipex_assist.load(str(tmp_path), str(tmp_path), executor="native")
    assert (model.identity.precision, model.identity.assistant_precision) == ("int4", "int4")
    assert ipex_assist.load(str(tmp_path), None, executor="native", precision="bf16").identity.precision == "bf16"
    assert model.generate("ab", max_new_tokens=4).tokens


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from([32, 64, 128]), st.randoms(use_true_random=False))
def test_gptq_pack_and_unpack(columns: int, eighths: int, group: int, random: Any) -> None:
    """Whatever the values and zeros, 0 included, whose stored "zero - 1" borrows from the next column's."""
    width, seed = eighths * 24, random.randrange(1 << 30)
    generator = torch.Generator().manual_seed(seed)
    groups = -(-width // group)
    weight = Int4Weight(
        values=torch.randint(0, 16, (columns * 8, width), generator=generator, dtype=torch.uint8),
        scales=torch.rand(columns * 8, groups, generator=generator).half().float(),
        zeros=torch.randint(0, 16, (columns * 8, groups), generator=generator, dtype=torch.uint8),
        group=group,
    )
    tensors = gptq.pack(weight)
    assert tensors["qweight"].shape == (width // 8, columns * 8)
    assert tensors["qzeros"].shape == (groups, columns)
    back = gptq.unpack(tensors, group, minus_one=True)
    assert back.group_index is None
    for name in ("values", "scales", "zeros"):
        assert torch.equal(getattr(back, name), getattr(weight, name)), name


def test_smaller_groups_are_the_same_matrix() -> None:
    """256 to 128, a whole column to 32, and a last group that is short."""
    for width, group, smaller in ((512, 256, 128), (200, 200, 32), (320, 256, 64)):
        groups = -(-width // group)
        weight = Int4Weight(
            torch.randint(0, 16, (8, width), dtype=torch.uint8),
            torch.rand(8, groups),
            torch.randint(0, 16, (8, groups), dtype=torch.uint8),
            group,
        )
        split = weight.in_groups_of(smaller)
        assert split.scales.shape[1] == -(-width // smaller)
        assert torch.equal(split.dequantized(), weight.dequantized())


SCHEMES: dict[str, tuple[dict[str, Any], tuple[str, str, int]]] = {
    "AutoGPTQ": ({"bits": 4, "group_size": 64, "quant_method": "gptq"}, ("gptq", "gptq", 64)),
    "GPTQModel v2": ({"bits": 4, "format": "gptq_v2", "quant_method": "gptq"}, ("gptq", "gptq_v2", 128)),
    "AutoAWQ": ({"w_bit": 4, "q_group_size": 32, "version": "GEMM", "quant_method": "awq"}, ("awq", "awq", 32)),
    "auto-round sym": (
        {"bits": 4, "group_size": 128, "packing_format": "auto_round:auto_gptq", "quant_method": "auto-round"},
        ("auto-round", "gptq", 128),
    ),
    "auto-round asym": (
        {"bits": 4, "group_size": 128, "packing_format": "auto_round", "quant_method": "auto-round"},
        ("auto-round", "gptq_v2", 128),
    ),
    "auto-round gptqmodel": (
        {"bits": 4, "packing_format": "auto_round:gptqmodel", "quant_method": "intel/auto-round"},
        ("auto-round", "gptq_v2", 128),
    ),
    "auto-round awq": (
        {"bits": 4, "packing_format": "auto_round:auto_awq", "quant_method": "auto-round"},
        ("auto-round", "awq", 128),
    ),
}


@pytest.mark.parametrize("name", SCHEMES)
def test_schemes(name: str) -> None:
    """Schemes are read from what each tool writes into config.json; only the packing tells how zeros are stored."""
    declared, expected = SCHEMES[name]
    scheme = read_scheme(declared)
    assert (scheme.method, scheme.layout, scheme.group_size) == expected


UNREADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "another method": ({"quant_method": "hqq"}, "its method is hqq"),
    "5 bits": ({"quant_method": "gptq", "bits": 5}, "it has 5 bits"),
    "8 bits": ({"quant_method": "awq", "bits": 8}, "it has 8 bits"),
    "marlin": ({"quant_method": "gptq", "checkpoint_format": "marlin"}, "its checkpoint_format is marlin"),
    "gemv": ({"quant_method": "awq", "version": "gemv"}, "its version is gemv"),
    "group of nothing": ({"quant_method": "gptq", "group_size": 0}, "its group_size is 0"),
    "auto-round in floats": ({"quant_method": "auto-round", "data_type": "mx_fp"}, "its data_type is mx_fp"),
    "4-bit activations": ({"quant_method": "auto-round", "act_bits": 4}, "activations have 4 bits"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_said(name: str, tmp_path: Path) -> None:
    """The error is one line with the reason and what to do, at the load and not as a shape error somewhere in it."""
    declared, reason = UNREADABLE[name]
    tiny_models.save(tmp_path, "llama")
    quantized_files.declare(tmp_path, declared)
    checkpoint = open_checkpoint(str(tmp_path))
    with pytest.raises(IpexAssistError, match=re.escape(reason)) as raised:
        checkpoint.shapes()
    assert "ipex-assist quantize" in str(raised.value)


def _change(folder: Path, name: str, change: Any) -> None:
    tensors = load_file(folder / "model.safetensors")
    changed = change(tensors[name])
    tensors = {key: value for key, value in tensors.items() if key != name}
    if changed is not None:
        tensors[name] = changed.contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def test_the_command_ends_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A layout that we do not read ends with exit code 1 and one line for people."""
    checkpoint_files.save(checkpoint_files.tiny_model("llama"), tmp_path)
    quantized_files.declare(tmp_path, {"quant_method": "awq", "version": "gemv"})
    capsys.readouterr()
    assert cli.main(["-m", str(tmp_path), "--no-launch", "--no-assisted", "-p", "the fox"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "its version is gemv" in lines[0]


Q = "model.layers.1.self_attn.q_proj."
DAMAGES: dict[str, tuple[str, Any, str]] = {
    "no scales": ("scales", lambda t: None, "scales is not"),
    "6-bit zeros": ("qzeros", lambda t: t[:, :1].expand(-1, t.shape[1] * 3 // 2), "has 6 bits a value"),
    "too few columns": ("qweight", lambda t: t[:, :-1], "have the shapes"),
    "groups that do not fit": ("scales", lambda t: t.repeat(10, 1), "have the shapes"),
    "flat": ("scales", lambda t: t.flatten(), "have the shapes"),
    "scales that are no numbers": ("scales", lambda t: t * float("nan"), "are not all finite"),
    "integers as floats": ("qweight", lambda t: t.float(), "torch.float32"),
    "a group that does not exist": ("g_idx", lambda t: t + 1, "does not name one of 2 groups"),
}


@pytest.mark.parametrize("name", DAMAGES)
@needs_native
def test_damaged_tensors_are_refused(name: str, tmp_path: Path) -> None:
    """No assertion, no wrong text: an error that names the module."""
    part, change, reason = DAMAGES[name]
    quantized_files.save(tmp_path)
    _change(tmp_path, Q + part, change)
    with pytest.raises(IpexAssistError, match=re.escape(reason)) as raised:
        tiny_models.text(tmp_path, "native", "int4")
    assert "layers.1.self_attn.q_proj" in str(raised.value)


@needs_native
def test_groups_the_core_lacks(tmp_path: Path) -> None:
    """Groups of 16 are refused at int4 with the way out, which works."""
    model, _ = quantized_files.save(tmp_path, group=16)
    with pytest.raises(IpexAssistError, match=r"in groups of 16 input columns.*--precision bf16"):
        tiny_models.text(tmp_path, "native", "int4")
    text = tiny_models.text(tmp_path, "native", "fp32")
    assert relative(text.forward(PROMPT, last=len(PROMPT)), reference_logits(model)) < 1e-4


def test_scaled_activations_are_refused(tmp_path: Path) -> None:
    """AWQ of GPTBigCode divides activations by scales of their own; to leave these out would give nonsense."""
    quantized_files.save(tmp_path, "gpt-bigcode", kind="awq", group=32)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["transformer.h.0.mlp.act.scales"] = torch.ones(96)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(IpexAssistError, match="activations are scaled"):
        open_checkpoint(str(tmp_path)).shapes()


def test_configs_of_their_own(tmp_path: Path) -> None:
    """AutoGPTQ's quantize_config.json and AutoAWQ's quant_config.json, of the time before quantization_config."""
    for kind, own in (("gptq", "quantize_config.json"), ("awq", "quant_config.json")):
        folder = tmp_path / kind
        _, stored = quantized_files.save(folder, kind=kind, group=64)
        config = json.loads((folder / "config.json").read_text())
        declared = config.pop("quantization_config")
        del declared["quant_method"]
        (folder / "config.json").write_text(json.dumps(config))
        (folder / own).write_text(json.dumps(declared))
        name, w = next(iter(stored.items()))
        assert torch.equal(dict(open_checkpoint(str(folder)).tensors([name]))[name], w.weight)
