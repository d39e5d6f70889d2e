"""Prompts of models in GGUF's blocks, mixtures among them: a row among many has the bits that it has in a step."""

from __future__ import annotations

import os
from array import array
from pathlib import Path

import block_files
import pytest
import torch
from conftest import HAS_NATIVE
from gguf import GGMLQuantizationType as Type
from native_models import pool

from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import weight_shape
from ipex_assist.native.library import unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

HIDDEN, VOCAB = 256, 60
ATTENTION = AttentionSpec(8, 2, 32)
TEXT = [(7 * i * i + 3 * i) % VOCAB for i in range(700)]
PLACES = {
    "plain": ("layers.0",),
    "experts": tuple(f"layers.0.experts.{expert}" for expert in range(4)),
    "shared": ("layers.0.shared",),
}


def model(places: tuple[str, ...], kind: Type, file: Path, threads: int) -> NativeModel:
    """One layer, in whose MLPs at these places all weights are in blocks, and as much else in floats."""
    mlp = MlpSpec(768) if places == PLACES["plain"] else Experts(4, 2, 256, shared_size=512)
    spec = DecoderSpec("llama", VOCAB, HIDDEN, (LayerSpec(ATTENTION, mlp),), 4096)
    all_places = PLACES["plain"] if spec.experts is None else PLACES["experts"] + PLACES["shared"]
    linears = [f"{place}.{part}_proj.weight" for place in all_places for part in ("gate", "up", "down")]
    blocks = [name for name in linears if name.rpartition(".")[0].rpartition(".")[0] in places]
    made = PackedModel(spec, "stored", pool(threads), formats=dict.fromkeys(blocks, 64 + int(kind)))
    made.allocate()
    for seed, name in enumerate(blocks):
        rows, width = weight_shape(spec, name)
        raw = block_files.random_blocks(kind, rows, width, seed)
        file.write_bytes(raw.tobytes())
        descriptor = os.open(file, os.O_RDONLY)
        made.pack_blocks(name, descriptor, array("q", [raw.shape[1] * i for i in range(rows)]), width)
        os.close(descriptor)
    others = [f"layers.0.{each}_proj.weight" for each in "qkvo"] + ["embed_tokens.weight", "lm_head.weight"]
    others += ["final_norm.weight", "layers.0.attention_norm.weight", "layers.0.mlp_norm.weight"]
    others += [name for name in linears if name not in blocks]
    others += ["layers.0.router.weight"] if spec.experts is not None else []
    for seed, name in enumerate(others):
        made.pack(name, torch.randn(weight_shape(spec, name), generator=torch.Generator().manual_seed(seed)))
    return NativeModel(made)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q8_0], ids=lambda kind: kind.name)
@pytest.mark.parametrize("places", [("plain",), ("experts",), ("shared",), ("experts", "shared")], ids="-".join)
def test_a_prompt_has_the_bits_of_steps(places: tuple[str, ...], kind: Type, threads: int, tmp_path: Path) -> None:
    """Scales and sums of the first rows for later blocks of rows; an expert's that are not copied beside its values;
    slots of a shared expert in other bytes than those before them."""
    native = model(sum((PLACES[each] for each in places), ()), kind, tmp_path / "blocks", threads)

    def bits(rows: int) -> torch.Tensor:
        native.pass_rows = rows
        return native.forward([Rows(native.new_sequence(len(TEXT)), TEXT, 200)])

    expected = bits(16)
    assert expected.isfinite().all()
    for rows in (100, 256, 1000):
        assert torch.equal(bits(rows), expected), rows
