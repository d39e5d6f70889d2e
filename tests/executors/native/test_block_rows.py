"""Models in GGUF's blocks: a row's bits depend on the tokens before it alone, whatever it is computed with."""

from __future__ import annotations

import os
import random
from array import array
from pathlib import Path

import block_files
import numpy as np
import pytest
import torch
from block_files import ALL_KINDS, Kind
from conftest import HAS_NATIVE
from gguf import GGMLQuantizationType as Type
from native_models import pool, relative

from ipex_assist.executors.adapters import AdapterChoice, AdapterMatrices
from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.mlp_spec import MlpSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import weight_shape
from ipex_assist.native.library import unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

HIDDEN, INNER, VOCAB = 256, 768, 60
SPEC = DecoderSpec("llama", VOCAB, HIDDEN, (LayerSpec(AttentionSpec(8, 2, 32), MlpSpec(INNER)),) * 2, 4096)
TEXT = [(7 * i * i + 3 * i) % VOCAB for i in range(90)]
NAMES = [f"layers.{i}.{each}_proj.weight" for i in (0, 1) for each in ("q", "k", "v", "o", "gate", "up", "down")]
NAMES += ["embed_tokens.weight", "lm_head.weight"]
NORMS = [f"layers.{i}.{each}_norm.weight" for i in (0, 1) for each in ("attention", "mlp")] + ["final_norm.weight"]


def blocks(kinds: dict[str, Kind]) -> dict[str, np.ndarray]:
    """Blocks of about the size of usual weights."""
    made = {}
    for seed, (name, kind) in enumerate(kinds.items()):
        raw = block_files.random_blocks(kind, *weight_shape(SPEC, name), seed=seed)
        each = raw.reshape(len(raw), -1, block_files.block_size(kind)[1])
        block_files.set_scales(kind, each, [1.0, 0.3, 0.8, 1.1][: len(block_files.SCALES[kind])])
        size = 0.03 / max(1e-9, float(block_files.floats(kind, raw).std()))
        block_files.set_scales(kind, each, [size, 0.3 * size, 0.8 * size, 1.1 * size][: len(block_files.SCALES[kind])])
        made[name] = raw
    return made


def model(kinds: dict[str, Kind], raw: dict[str, np.ndarray], file: Path, threads: int = 2) -> NativeModel:
    made = PackedModel(SPEC, "stored", pool(threads), formats={name: 64 + int(kinds[name]) for name in raw})
    made.allocate()
    for name, rows in raw.items():
        file.write_bytes(rows.tobytes())
        descriptor = os.open(file, os.O_RDONLY)
        offsets = array("q", [rows.shape[1] * i for i in range(len(rows))])
        made.pack_blocks(name, descriptor, offsets, weight_shape(SPEC, name)[1])
        os.close(descriptor)
    for name in NORMS:
        made.pack(name, torch.ones(weight_shape(SPEC, name)))
    return NativeModel(made)


def in_floats(kinds: dict[str, Kind], raw: dict[str, np.ndarray]) -> NativeModel:
    """The same numbers in fp32."""
    made = PackedModel(SPEC, "fp32", pool(2))
    made.allocate()
    for name, rows in raw.items():
        made.pack(name, torch.from_numpy(block_files.floats(kinds[name], rows)))
    for name in NORMS:
        made.pack(name, torch.ones(weight_shape(SPEC, name)))
    return NativeModel(made)


@pytest.fixture(scope="module", params=[0, len(ALL_KINDS) - len(NAMES)], ids=["first", "last"])
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """Every format is that of a matrix: of one model, or of another."""
    kinds: dict[str, Kind] = dict(zip(NAMES, ALL_KINDS[request.param :], strict=False))
    raw = blocks(kinds)
    return kinds, raw, model(kinds, raw, tmp_path_factory.mktemp("blocks") / "file")


def test_company_and_chunks_change_nothing(mixed: tuple) -> None:
    """One token at a time, in chunks of any size, beside other texts and behind drafts that were rolled back."""
    native = mixed[2]
    alone = native.new_sequence(200)
    steps = torch.cat([native.forward([Rows(alone, [token])]) for token in TEXT])
    assert steps.isfinite().all()
    for seed in range(6):
        chance, found, at = random.Random(seed), [], 0
        own, other = native.new_sequence(200), native.new_sequence(2000)
        while at < len(TEXT):
            count = min(len(TEXT) - at, chance.choice([1, 1, 2, 5, 8, 9, 16, 17, 33]))
            company = [chance.randrange(VOCAB) for _ in range(chance.choice([0, 1, 4, 20]))]
            drafts = [chance.randrange(VOCAB) for _ in range(chance.choice([0, 0, 3, 7]))]
            rows = [Rows(own, TEXT[at : at + count] + drafts, count + len(drafts))]
            if company:
                rows.insert(chance.randrange(2), Rows(other, company))
            logits = native.forward(rows)
            first = 1 if company and rows[0].sequence is other else 0
            found.append(logits[first : first + count])
            at += count
            own.truncate(at)
        assert torch.equal(torch.cat(found), steps), seed


def test_threads_change_nothing(mixed: tuple, tmp_path: Path) -> None:
    kinds, raw, native = mixed
    expected = native.forward([Rows(native.new_sequence(200), TEXT, len(TEXT))])
    for threads in (1, 3):
        other = model(kinds, raw, tmp_path / "file", threads)
        assert torch.equal(other.forward([Rows(other.new_sequence(200), TEXT, len(TEXT))]), expected), threads


def test_logits_are_near_those_of_floats(mixed: tuple) -> None:
    """Rows in int8 are all that differs; a format that is wrong in a model is not by so little."""
    kinds, raw, native = mixed
    exact = in_floats(kinds, raw)
    expected = exact.forward([Rows(exact.new_sequence(200), TEXT, len(TEXT))])
    assert relative(native.forward([Rows(native.new_sequence(200), TEXT, len(TEXT))]), expected) < 0.05


@pytest.mark.parametrize("kinds", [(Type.Q4_K, Type.Q6_K), (Type.Q4_0, Type.IQ2_S), (Type.NVFP4, Type.TQ1_0)])
def test_adapters_on_blocks(kinds: tuple[Type, Type], tmp_path: Path) -> None:
    """Sums of rows that A's kernel reads wrongly, B in the bits of another type, rows beside those without one."""
    of: dict[str, Kind] = {name: kinds["v_proj" in name or "down" in name] for name in NAMES}
    raw = blocks(of)
    native, exact = model(of, raw, tmp_path / "file"), in_floats(of, raw)
    chance = torch.Generator().manual_seed(1)
    matrices = []
    for name in NAMES[:-2]:
        rows, width = weight_shape(SPEC, name)
        a, b = torch.randn(5, width, generator=chance) * 0.05, torch.randn(rows, 5, generator=chance) * 0.2
        matrices.append(AdapterMatrices(name, a, b, 1.0))
    for each in (native, exact):
        each.add_adapter("it", matrices)

    def logits(of_model: NativeModel, scale: float | None) -> torch.Tensor:
        adapter = None if scale is None else AdapterChoice("it", scale)
        return of_model.forward([Rows(of_model.new_sequence(200, adapter=adapter), TEXT, len(TEXT))])

    plain, adapted = logits(native, None), logits(native, 0.7)
    assert relative(adapted, plain) > 0.1
    assert relative(adapted, logits(exact, 0.7)) < 0.05
    own, other = native.new_sequence(200, adapter=AdapterChoice("it", 0.7)), native.new_sequence(200)
    steps = [native.forward([Rows(other, [token]), Rows(own, [token])]) for token in TEXT]
    assert torch.equal(torch.stack([each[1] for each in steps]), adapted)
    assert torch.equal(torch.stack([each[0] for each in steps]), plain)
