"""Keys and values of fewer bits: what they are, what they cost, and how much memory they take."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from hypothesis import given
from hypothesis import strategies as st
from native_models import VARIANTS, folder, loaded, relative, tokens

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import Model
from ipex_assist.executors.kv_memory import KvMemory
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.torch.kv_cache import quantize_rows
from ipex_assist.executors.torch.model import TorchModel
from ipex_assist.native.library import unavailable

pytestmark = pytest.mark.one_stack

native = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")


@given(st.lists(st.floats(width=32, min_value=-(2.0**120), max_value=2.0**120), min_size=1, max_size=20))
def test_a_row_of_int8_is_near(values: list[float]) -> None:
    """Half a step at most, whose size the largest value of the row alone decides."""
    row = torch.tensor(values)
    integers, scale = quantize_rows(row)
    largest = float(row.abs().max())
    assert integers.dtype == torch.int8
    assert int(integers.abs().max()) == (127 if largest >= 1e-36 else 0)
    assert float(scale) == pytest.approx(largest / 127, rel=1e-6, abs=1e-44)
    bound = 0.51 * largest / 127 if largest >= 1e-36 else 1e-36
    assert float((integers.double() * scale.double() - row.double()).abs().max()) <= bound
    alone, beside = quantize_rows(row), quantize_rows(torch.stack((row, row * 3 + 1, row)))
    assert torch.equal(beside[0][2], alone[0])
    assert torch.equal(beside[1][2], alone[1])


def test_a_row_that_is_no_number() -> None:
    """It is none when it is read again, whole, and its neighbours are what they were."""
    rows = torch.ones(4, 8)
    rows[0, 3], rows[1, 0], rows[2] = math.nan, -math.inf, 0
    integers, scales = quantize_rows(rows)
    assert scales.isnan().flatten().tolist() == [True, True, False, False]
    assert integers.sum(-1).tolist() == [0, 0, 0, 8 * 127]


def logits(model: Model) -> torch.Tensor:
    """Of a prompt and of the steps after it, across the end of a block."""
    sequence = model.new_sequence(400)
    first = model.extend(sequence, tokens(250, 3), 250)
    return torch.cat((first, *(model.extend(sequence, [token]) for token in tokens(20, 4))))


@native
@pytest.mark.parametrize("variant", VARIANTS)
def test_both_executors_have_the_same_integers(variant: str) -> None:
    """A wrong scale, row or column in the core would be as far off as fewer bits are, or further."""
    wide = logits(tiny_models.model(folder(variant), exact=False))
    narrow = logits(tiny_models.model(folder(variant), exact=False, kv_precision="int8"))
    core = logits(loaded(variant, "fp32+int8"))
    cost, difference = relative(narrow, wide), relative(core, narrow)
    print(variant, f"cost {cost:.5f}, difference {difference:.5f}")
    assert 1e-4 < cost < 0.02
    # Values half way between two integers fall to either side.
    assert difference < 0.05 * cost


@native
@pytest.mark.parametrize("precision", ["fp32+bf16", "bf16+int8", "int8+int8", "int4+int8"])
def test_fewer_bits_cost_little(precision: str) -> None:
    """Beside what the linears' precision costs."""
    own, wide = precision.split("+")[0], logits(loaded("qwen3", "fp32"))
    before, after = relative(logits(loaded("qwen3", own)), wide), relative(logits(loaded("qwen3", precision)), wide)
    print(precision, f"{before:.5f}, {after:.5f}")
    assert before != after
    assert after < 1.2 * before + 0.01


@native
@pytest.mark.parametrize("variant", ["llama", "qwen3", "opt"])
def test_memory_holds_nearly_twice_as_much(variant: str) -> None:
    """A scale of four bytes for each head's key and value; blocks are padded alike."""
    packed = loaded(variant, "bf16").packed
    spec = packed.spec
    heads = 256 * 2 * sum(layer.attention.kv_heads for layer in spec.layers)
    assert packed.block_bytes("int8") == packed.block_bytes("bf16") // 2 + 4 * heads
    limit = 100 * packed.block_bytes("bf16")
    wide, narrow = NativeModel(packed, KvMemory(limit)), NativeModel(packed, KvMemory(limit), "int8")
    assert (wide.blocks.count, wide.kv_precision, narrow.kv_precision) == (100, "bf16", "int8")
    assert narrow.blocks.count == limit // packed.block_bytes("int8") > 160
    with pytest.raises(IpexAssistError, match="keys and values in precision 0 for attention in precision 1"):
        packed.block_bytes("fp32")


@pytest.mark.parametrize("kv_precision", ["bf16", "int8"])
def test_forks_and_new_texts_of_the_reference(kv_precision: str) -> None:
    """Scales go with their rows: into a copy, and away with a text that ended."""
    model = tiny_models.model(folder("llama"), exact=False, kv_precision=kv_precision)
    whole, fresh = model.new_sequence(64), model.new_sequence(64)
    for each in (whole, fresh):
        model.extend(each, tokens(20))
    fork = whole.fork(18)
    model.extend(whole, tokens(9, 1))
    fresh.truncate(18)
    expected = model.extend(fresh, tokens(9, 2), 9)
    assert torch.equal(model.extend(fork, tokens(9, 2), 9), expected)
    whole.truncate(0)
    model.extend(whole, tokens(18, 5))
    new = model.new_sequence(64)
    model.extend(new, tokens(18, 5))
    assert torch.equal(model.extend(whole, tokens(9, 6), 9), model.extend(new, tokens(9, 6), 9))


def test_rows_of_the_reference_have_the_bits_they_have_alone() -> None:
    """Keys and values are converted again in each pass, and must be the same."""
    model = tiny_models.model(folder("llama"), "torch", "fp32", kv_precision="int8")
    alone, together = model.new_sequence(96), model.new_sequence(96)
    for each in (alone, together):
        model.extend(each, tokens(40))
    rows = torch.cat([model.extend(alone, [token]) for token in tokens(7, 1)])
    assert torch.equal(model.extend(together, tokens(7, 1), 7), rows)


def with_large_channels(path: Path) -> None:
    """A model whose keys have two channels a hundredfold larger than the others, by their biases, as Qwen2.5's have."""
    model = tiny_models.save(path, "qwen2")
    for layer in model.model.layers:
        layer.self_attn.k_proj.bias.data[[3, 20]] = torch.tensor([250.0, -90.0])
    model.save_pretrained(path)


def test_channels_of_very_different_size(tmp_path: Path) -> None:
    """One scale for all of them leaves little of the small ones."""
    with_large_channels(tmp_path)

    def rows(model: Model) -> torch.Tensor:
        return model.extend(model.new_sequence(90), tokens(80), 80)

    expected = rows(tiny_models.model(tmp_path, exact=False))
    plain = tiny_models.model(tmp_path, exact=False, kv_precision="int8")
    errors = [relative(rows(plain), expected)]
    assert isinstance(plain, TorchModel)
    plain.key_factors = []
    errors.append(relative(rows(plain), expected))
    if HAS_NATIVE:
        core = tiny_models.model(tmp_path, "native", exact=False, kv_precision="int8")
        errors.insert(0, relative(rows(core), expected))
    print([f"{error:.4f}" for error in errors])
    assert all(error < 0.6 * errors[-1] for error in errors[:-1])


def test_factors_are_the_sizes_of_channels(tmp_path: Path) -> None:
    """Against what keys really are; a channel and the one it is rotated with have the same factor."""
    with_large_channels(tmp_path)
    model = tiny_models.model(tmp_path, exact=False, kv_precision="int8")
    assert isinstance(model, TorchModel)
    sequence = model.new_sequence(90)
    model.extend(sequence, tokens(80))
    for layer, factors in enumerate(model.key_factors):
        assert factors.shape == (2, 1, 16)
        assert torch.equal(factors.log2().round().exp2(), factors)
        assert torch.equal(factors[..., :8], factors[..., 8:])
        keys = sequence.cache.read(layer, 80)[0]  # (kv_heads, 80, head_dim)
        sizes = (keys[..., :8].square() + keys[..., 8:].square()).mean(1).div(2).sqrt()
        assert ((factors[:, 0, :8] / sizes.sqrt()).log2().abs() < 1).all()
    found = [float(model.key_factors[0][head, 0, channel]) for head, channel in ((0, 3), (0, 11), (1, 4))]
    assert found == [16, 16, 8]  # of 250 and 90 ÷ √2, in the middle of two channels


# Widths of latents as DeepSeek and GLM-4.7-Flash have them: a key of 576 values, of which 512 are the value, too.
WIDE = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128}


@native
@pytest.mark.parametrize("variant", tiny_models.known("deepseek-v2-direct", "deepseek-v3", "glm4-moe-lite"))
def test_latents_in_int8(variant: str, tmp_path: Path) -> None:
    """Of their real width: near the exact ones and the reference, a row's bits in any pass, and half the memory."""
    tiny_models.save(tmp_path, variant, max_position_embeddings=1024, **WIDE)
    wide = logits(tiny_models.model(tmp_path, exact=False))
    narrow = tiny_models.model(tmp_path, "native", exact=False, kv_precision="int8")
    steps = logits(narrow)
    reference = logits(tiny_models.model(tmp_path, exact=False, kv_precision="int8"))
    errors = torch.stack([torch.tensor(relative(*rows)) for rows in zip(steps, wide, strict=True)])
    differences = torch.stack([torch.tensor(relative(*rows)) for rows in zip(steps, reference, strict=True)])
    print(variant, f"cost {float(errors.median()):.5f}, difference {float(differences.median()):.5f}")
    assert 1e-4 < float(errors.median()) < 0.06  # random queries of this width are large
    assert float(differences.median()) < 0.05 * float(errors.median())
    text = [*tokens(250, 3), *tokens(20, 4)]
    sequence, rows = narrow.new_sequence(400), []
    for first, size in ((0, 3), (3, 97), (100, 1), (101, 154), (255, 2), (257, 13)):
        rows.append(narrow.extend(sequence, text[first : first + size], size))
    assert torch.equal(torch.cat(rows), steps)
    assert isinstance(narrow, NativeModel)
    assert narrow.packed.block_bytes("int8") < 0.3 * narrow.packed.block_bytes("fp32")
