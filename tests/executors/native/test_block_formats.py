"""GGUF's block formats as they are stored: numbers of a file to the last bit, rows in int8, sums in a fixed order."""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping
from pathlib import Path

import block_files
import gguf
import numpy as np
import pytest
import torch
from block_files import ALL_KINDS, KINDS, SCALES, SUPER, Floats4, Kind, block_size
from conftest import HAS_NATIVE
from gguf import GGMLQuantizationType as Type
from native_models import pool
from numpy.typing import NDArray

from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import HiddenRows, Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.draft_head import Taps
from ipex_assist.models.mlp_spec import MlpSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import NotFiniteError, weight_shape
from ipex_assist.native.library import ISA_VARIABLE, instruction_set, unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

LEVELS = ["avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"]
HIDDEN, INNER, VOCAB = 256, 768, 60
LAYER = LayerSpec(AttentionSpec(8, 2, 32), MlpSpec(INNER))
PARTS = {"qkv": ("q_proj", "k_proj", "v_proj"), "output": ("o_proj",), "down": ("down_proj",)}
Raw = NDArray[np.uint8]


def spec(tied: bool = False) -> DecoderSpec:
    return DecoderSpec("llama", VOCAB, HIDDEN, (LAYER,), 4096, tied_head=tied)


def packed(kinds: Mapping[str, Kind], raw: Mapping[str, Raw], file: Path, threads: int = 1) -> PackedModel:
    """A model of one layer with these weights in blocks, and random ones in floats."""
    tied = "lm_head.weight" not in raw and "embed_tokens.weight" in raw
    model = PackedModel(spec(tied), "stored", pool(threads), formats={name: 64 + int(kinds[name]) for name in raw})
    model.allocate()
    names = ["q", "k", "v", "o", "gate", "up", "down"]
    norms = ["final_norm.weight", "layers.0.attention_norm.weight", "layers.0.mlp_norm.weight"]
    outer = ["embed_tokens.weight"] if tied else ["embed_tokens.weight", "lm_head.weight"]
    with file.open("wb") as out:
        for rows in raw.values():
            out.write(b"some" + rows.tobytes())
    descriptor, at = os.open(file, os.O_RDONLY), 0
    try:
        for name, rows in raw.items():
            offsets = array("q", [at + 4 + i * rows.shape[1] for i in range(len(rows))])
            model.pack_blocks(name, descriptor, offsets, weight_shape(model.spec, name)[1])
            at += 4 + rows.size
    finally:
        os.close(descriptor)
    for name in [*(f"layers.0.{each}_proj.weight" for each in names), *norms, *outer]:
        if name not in raw:
            model.pack(name, torch.randn(weight_shape(model.spec, name), generator=torch.Generator().manual_seed(1)))
    return model


def layer_blocks(kinds: Mapping[str, Kind]) -> dict[str, Raw]:
    """Random blocks of these weights of the layer, each with as many rows as the model has there."""
    return {
        name: block_files.random_blocks(kind, *weight_shape(spec(), name), seed=index)
        for index, (name, kind) in enumerate(kinds.items())
    }


def check_linears(kinds: Mapping[str, Kind], raw: Mapping[str, Raw], model: PackedModel) -> None:
    """All linears but the MLP's first, of one row, of a few and of many, have the bits of the reference."""
    for which, parts in PARTS.items():
        for rows in (1, 2, 3, 4, 5, 8, 9, 21, 40):
            width = INNER if which == "down" else HIDDEN
            chance = np.random.default_rng(rows)
            x = (chance.standard_normal((rows, width)) * chance.choice([1e-3, 1, 40], (rows, 1))).astype(np.float32)
            x[0, :128] = 0
            found = model.linears(which, torch.from_numpy(x)).numpy()
            at = 0
            for part in parts:
                name = f"layers.0.{part}.weight"
                right = block_files.linear(kinds[name], raw[name], x)
                assert np.array_equal(found[:, at : at + right.shape[1]], right), (name, rows)
                at += -(-right.shape[1] // 16) * 16


def of_layer(*kinds: Kind) -> dict[str, Kind]:
    """q, k, v, o, gate, up and down, of these types in turn."""
    names = ["q", "k", "v", "o", "gate", "up", "down"]
    return {f"layers.0.{name}_proj.weight": kinds[index % len(kinds)] for index, name in enumerate(names)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_reference_is_what_the_package_dequantizes(kind: Type) -> None:
    """The tests below rest on it."""
    raw = block_files.random_blocks(kind, 20, 1024)
    assert np.array_equal(block_files.floats(kind, raw), gguf.dequantize(raw, kind))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_a_linear_has_the_bits_of_plain_loops(
    kind: Kind, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bit in the wrong place, a sum that saturates, a row of a batch or a prompt that differs from a step's."""
    monkeypatch.setenv(ISA_VARIABLE, level)
    if instruction_set() != level:
        pytest.skip(f"this processor has no {level}")
    kinds = of_layer(kind)
    raw = layer_blocks(kinds)
    check_linears(kinds, raw, packed(kinds, raw, tmp_path / "blocks", 1 + len(level) % 3))


@pytest.mark.parametrize("extreme", [0, 255])
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_the_largest_numbers(kind: Kind, extreme: int, tmp_path: Path) -> None:
    """All bits of all codes and factors set, or none: sums as large as they can be, and exact."""
    kinds = of_layer(kind)
    raw = {name: np.full_like(each, extreme) for name, each in layer_blocks(kinds).items()}
    for each in raw.values():
        blocks = each.reshape(len(each), -1, block_size(kind)[1])
        block_files.set_scales(kind, blocks, [0.3, -7.0, 2.0, 448.0][: len(SCALES[kind])])
    check_linears(kinds, raw, packed(kinds, raw, tmp_path / "blocks"))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("first", [Type.Q4_K, Type.Q8_0], ids=lambda kind: kind.name)
def test_parts_of_a_linear_differ(first: Type, threads: int, tmp_path: Path) -> None:
    """Q4_K_M has values in Q6_K beside queries in Q4_K: panels of one with the address or the format of the other."""
    kinds = of_layer(first, Type.Q6_K, Type.Q5_0, Type.Q3_K)
    raw = layer_blocks(kinds)
    check_linears(kinds, raw, packed(kinds, raw, tmp_path / "blocks", threads))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_embeddings_are_those_of_the_file(kind: Kind, tied: bool, tmp_path: Path) -> None:
    """A row of a table that is the head, or has no other use: the numbers in fp32, to the last bit."""
    names = ["embed_tokens.weight"] + ([] if tied else ["lm_head.weight"])
    raw = {name: block_files.random_blocks(kind, VOCAB, HIDDEN, seed) for seed, name in enumerate(names)}
    model = NativeModel(packed(dict.fromkeys(names, kind), raw, tmp_path / "blocks"))
    hidden = HiddenRows(Taps((0,), False))
    model.forward([Rows(model.new_sequence(VOCAB), list(range(VOCAB)), 1)], None, hidden)
    assert hidden.rows is not None
    assert np.array_equal(hidden.rows, block_files.floats(kind, raw["embed_tokens.weight"]))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_a_scale_that_is_no_number_is_refused(kind: Kind, value: float, tmp_path: Path) -> None:
    """It would make every logit NaN, of a file that was damaged."""
    name, (columns, size) = "layers.0.down_proj.weight", block_size(kind)
    for at in SCALES[kind]:
        raw = block_files.random_blocks(kind, HIDDEN, INNER)
        block_files.set_scale(kind, raw.reshape(HIDDEN, INNER // columns, size)[77, -1:], at, np.array([value]))
        with pytest.raises(NotFiniteError, match=r"a scale that is NaN or infinity in row 77"):
            packed({name: kind}, {name: raw}, tmp_path / "blocks")


@pytest.mark.parametrize("kind", [Type.TQ2_0, Type.NVFP4], ids=lambda kind: kind.name)
def test_rows_with_scales_of_their_own(kind: Type, tmp_path: Path) -> None:
    """A scale of another column, one that parts beside it lack, a bias that is scaled; rows in memory."""
    name, chance = "layers.0.q_proj.weight", np.random.default_rng(3)
    kinds: dict[str, Kind] = {name: kind, "layers.0.k_proj.weight": Type.Q4_0, "layers.0.v_proj.weight": kind}
    raw = {each: block_files.random_blocks(kinds[each], *weight_shape(spec(), each), seed=4) for each in kinds}
    model = packed(kinds, raw, tmp_path / "blocks")
    rows = np.ascontiguousarray(raw[name])
    scales = chance.standard_normal(len(rows)).astype(np.float32)
    addresses = array("q", [rows.ctypes.data + i * rows.shape[1] for i in range(len(rows))])
    model.pack_blocks(name, -1, addresses, HIDDEN, array("f", scales.tolist()))
    x = chance.standard_normal((5, HIDDEN)).astype(np.float32)
    found = model.linears("qkv", torch.from_numpy(x)).numpy()
    assert np.array_equal(found[:, :HIDDEN], block_files.linear(kind, rows, x) * scales)
    for at, other in ((HIDDEN, "layers.0.k_proj.weight"), (HIDDEN + 64, "layers.0.v_proj.weight")):
        assert np.array_equal(found[:, at : at + 64], block_files.linear(kinds[other], raw[other], x))
    with pytest.raises(NotFiniteError, match="row 9"):
        model.pack_blocks(name, -1, addresses, HIDDEN, array("f", [1.0] * 9 + [np.inf] * (len(rows) - 9)))
    with pytest.raises(IpexAssistError, match="scales of rows, which this format does not have"):
        model.pack_blocks("layers.0.k_proj.weight", -1, addresses[:64], HIDDEN, array("f", [1.0] * 64))


@pytest.mark.parametrize("kind", list(Floats4), ids=lambda kind: kind.name)
def test_floats_of_bitsandbytes_are_as_near_as_16_bits(kind: Floats4) -> None:
    """A table in another order, or rounded to 8 bits."""
    table = [-1, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635]
    table += [-0.18477343022823334, -0.09105003625154495, 0, 0.07958029955625534, 0.16093020141124725]
    table += [0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1]
    if kind == Floats4.FP4:
        table = [0, 0.0052083333, 0.66666667, 1, 0.33333333, 0.5, 0.16666667, 0.25]
        table += [-each for each in table]
    raw = np.zeros((1, 36), np.uint8)
    raw[0, 4:] = np.arange(32) % 8 * 2 * 16 + np.arange(32) % 8 * 2 + 1
    block_files.set_scale(kind, raw, 0, np.array([3], np.float32))
    assert np.abs(block_files.floats(kind, raw)[0] - 3 * np.array(table * 4)).max() <= 3 * 2**-16


def test_what_cannot_be_packed_is_refused(tmp_path: Path) -> None:
    """A file that ends too early, another shape, floats in the place of blocks, blocks that a row is no multiple of."""
    name = "layers.0.down_proj.weight"
    model = PackedModel(spec(), "stored", pool(1), formats={name: 64 + int(Type.Q6_K)})
    model.allocate()
    (tmp_path / "short").write_bytes(bytes(630 * 256 - 1))
    file = os.open(tmp_path / "short", os.O_RDONLY)
    rows = array("q", [630 * i for i in range(HIDDEN)])
    with pytest.raises(IpexAssistError, match="the file ends 1 bytes too early"):
        model.pack_blocks(name, file, rows, INNER)
    with pytest.raises(IpexAssistError, match=r"down_proj.* \(255, 768\) has no place"):
        model.pack_blocks(name, file, rows[:-1], INNER)
    with pytest.raises(IpexAssistError, match="has no place"):
        model.pack_blocks("layers.0.o_proj.weight", file, rows, HIDDEN)
    os.close(file)
    with pytest.raises(IpexAssistError, match="floats where blocks of a file are expected"):
        model.pack(name, torch.zeros(HIDDEN, INNER))
    narrow = DecoderSpec("llama", VOCAB, 96, (LayerSpec(AttentionSpec(3, 3, 32), MlpSpec(96)),), 4096)
    with pytest.raises(IpexAssistError, match="down_proj of 96 columns in blocks that do not divide them"):
        PackedModel(narrow, "stored", pool(1), formats={name: 64 + int(Type.Q6_K)})
    with pytest.raises(IpexAssistError, match="there is no format 79"):
        PackedModel(spec(), "stored", pool(1), formats={name: 79})


def test_parts_beside_floats_are_bf16() -> None:
    """A linear takes one kind of rows: what its parts do not agree on is asked of the core before it is packed."""
    names = [f"layers.0.{part}_proj.weight" for part in ("q", "k", "down")]
    model = PackedModel(spec(), "stored", pool(1), formats=dict.fromkeys(names, 64 + int(Type.Q4_K)))
    assert [model.format_of(name) for name in names] == [1, 1, 76]


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.name)
def test_memory_is_at_most_three_percent_more_than_the_file(kind: Kind) -> None:
    """Padding, and factors that are spread over bytes."""
    kinds = of_layer(kind)
    plain = PackedModel(spec(), "bf16", pool(1))
    columns = sum(rows * width for rows, width in (weight_shape(spec(), name) for name in kinds))
    block, size = block_size(kind)
    made = PackedModel(spec(), "stored", pool(1), formats={name: 64 + int(kind) for name in kinds})
    pages = 4096 * 8
    assert made.nbytes - (plain.nbytes - 2 * columns) <= 1.03 * columns // block * size + pages


def test_every_format_has_its_number() -> None:
    """A type that the checkpoint side takes for one that the core multiplies, or the other way round."""
    from ipex_assist.quantization.precision import BLOCK_TYPES

    assert set(BLOCK_TYPES) == {int(kind) for kind in ALL_KINDS}
    for kind in ALL_KINDS:
        block, stored = block_size(kind)
        assert BLOCK_TYPES[int(kind)] == stored / block
    assert {block for block, _ in map(gguf.GGML_QUANT_SIZES.get, SUPER)} == {256}  # type: ignore[misc]
