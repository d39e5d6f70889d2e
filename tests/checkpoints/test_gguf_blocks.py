"""GGUF files that the native core computes as they are stored: mixed formats, from the file to logits."""

from __future__ import annotations

import json
import re
from pathlib import Path

import block_files
import checkpoint_files
import numpy as np
import pytest
import tiny_models
import torch
from block_files import KINDS
from conftest import HAS_NATIVE
from gguf import GGMLQuantizationType as Type
from native_models import relative

from ipex_assist import cli
from ipex_assist.checkpoints import gguf_file
from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.checkpoints.packed_size import estimate_bytes
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.model_bytes import checkpoint_bytes
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.select_executor import stored_precision
from ipex_assist.native.library import unavailable

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

SIZES = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
PROMPT = list(range(3, 40))


def q4_k_m(name: str) -> Type:
    """As llama.cpp mixes them: more bits for embeddings, and in some layers for values and what leaves the MLP."""
    if "embed_tokens" in name or ("layers.0" in name and ("v_proj" in name or "down_proj" in name)):
        return Type.Q6_K
    return Type.Q4_K


def written(tmp_path: Path, kind: object, family: str = "llama", **changes: object) -> tuple[Path, torch.nn.Module]:
    """A file and the model of its numbers."""
    model = checkpoint_files.tiny_model(family, **(SIZES | changes))
    path = tmp_path / "m.gguf"
    stored = checkpoint_files.write_gguf(model, path, kind, blocks_of=block_files.blocks_of)  # type: ignore[arg-type]
    model.load_state_dict({name: torch.from_numpy(value) for name, value in stored.items()}, strict=False)
    model.tie_weights()
    return path, model


def loaded(path: Path) -> NativeModel:
    model = load_model(LoadRequest(open_checkpoint(str(path)), "stored", "native"))
    assert isinstance(model, NativeModel)
    return model


def logits_of(model: NativeModel, tokens: list[int]) -> torch.Tensor:
    return tiny_models.Text(model).forward(tokens, last=len(tokens))


def check(path: Path, model: torch.nn.Module, bound: float) -> None:
    """Logits are near transformers' on the same numbers, and have the same bits in a prompt and in steps."""
    native = loaded(path)
    got = logits_of(native, PROMPT)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0]
    assert relative(got, expected) < bound
    text = tiny_models.Text(native)
    assert torch.equal(torch.cat([text.forward([token]) for token in PROMPT]), got)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_a_mixed_file(family: str, tied: bool, tmp_path: Path) -> None:
    """Rows of a Llama's queries that are not put back into order, parts of a linear in each other's format, a head or
    table that is dequantized, numbers that are rounded on the way."""
    path, model = written(tmp_path, q4_k_m, family, tie_word_embeddings=tied)
    checkpoint = open_checkpoint(str(path))
    assert stored_precision(checkpoint, "native") == "stored"
    assert stored_precision(checkpoint, "torch") is None
    check(path, model, 0.02)
    native = loaded(path)
    formats = {native.packed.format_of(f"layers.{i}.{name}_proj.weight") for i in range(2) for name in "qkvo"}
    assert formats == {76, 78}
    assert isinstance(checkpoint, GgufCheckpoint)
    in_file = sum(gguf_file.stored_bytes(name, tensor) for name, tensor in checkpoint.header.tensors.items())
    assert native.packed.nbytes < 1.03 * in_file + 40 * 4096  # pages


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_file_of_each_type(kind: Type, tmp_path: Path) -> None:
    """A type taken for another, or dequantized without a word."""
    path, model = written(tmp_path, kind)
    check(path, model, 0.03)


def test_floats_beside_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Keys in F16 beside queries in Q4_K: a linear takes one kind of rows, so both are bf16, and that is said."""
    path, model = written(tmp_path, lambda name: Type.F16 if "k_proj" in name else Type.Q8_0)
    check(path, model, 0.03)
    assert "4 matrices become bf16 here" in caplog.text


def test_what_it_will_take(tmp_path: Path) -> None:
    """A plan of memory by bf16 would refuse the largest files."""
    path, _ = written(tmp_path, q4_k_m)
    checkpoint = open_checkpoint(str(path))
    planned = checkpoint_bytes(checkpoint, "stored", wanted=1)
    assert planned.weights == loaded(path).packed.nbytes
    tensors = estimate_bytes(str(path), None)
    assert tensors is not None
    assert 0.9 < tensors / planned.weights < 1.1
    other = estimate_bytes(str(path), "bf16")
    assert other is not None
    assert other > 2 * tensors


def test_its_formats_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a file holds and what it is computed in; a linear with a part in floats is said to be bf16."""
    path, _ = written(
        tmp_path,
        lambda name: Type.F16 if "layers.1.self_attn.k_proj" in name else q4_k_m(name),
        tie_word_embeddings=True,
    )
    assert cli.main(["models", str(path), "--json"]) == 0
    found = {(each["format"], each["computed"]): each for each in json.loads(capsys.readouterr().out)}
    counts = {("F32", "fp32"): 5, ("F16", "bf16"): 1, ("Q4_K", "as stored"): 9, ("Q4_K", "bf16"): 2}
    counts["Q6_K", "as stored"] = 3
    assert {key: each["tensors"] for key, each in found.items()} == counts
    assert found["Q6_K", "as stored"]["bytes"] * 256 == found["Q6_K", "as stored"]["weights"] * 210
    assert cli.main(["models", str(path)]) == 0
    assert re.search(r"\nQ4_K +9 +\S+ GiB +4\.5 +as stored\n", capsys.readouterr().out)
    assert cli.main(["models", str(tmp_path)]) == 1


def test_other_precisions_convert(tmp_path: Path) -> None:
    """--precision bf16 and the rest go on reading such files, by numbers in floats."""
    path, model = written(tmp_path, q4_k_m)
    with torch.no_grad():
        expected = model(torch.tensor([PROMPT])).logits[0]
    for precision in ("bf16", "int8"):
        made = load_model(LoadRequest(open_checkpoint(str(path)), precision, "native"))
        assert isinstance(made, NativeModel)
        assert relative(logits_of(made, PROMPT), expected) < 0.03


def test_stored_is_of_blocks(tmp_path: Path) -> None:
    """A checkpoint in floats has nothing that would be stored as it is."""
    path, _ = written(tmp_path, Type.F16)
    checkpoint = open_checkpoint(str(path))
    assert isinstance(checkpoint, GgufCheckpoint)
    assert checkpoint.stored_precision is None
    with pytest.raises(UsageError, match="no weights in blocks"):
        load_model(LoadRequest(checkpoint, "stored", "native"))


def test_a_damaged_scale_is_named(tmp_path: Path) -> None:
    """The tensor by the checkpoint's name, and its row."""
    path, _ = written(tmp_path, Type.Q8_0)
    tensor = open_checkpoint(str(path)).header.tensors["blk.1.ffn_down.weight"]  # type: ignore[attr-defined]
    damaged = bytearray(path.read_bytes())
    row = 34 * 512 // 32
    damaged[tensor.offset + 5 * row : tensor.offset + 5 * row + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(damaged)
    with pytest.raises(IpexAssistError, match=r"layers\.1\.mlp\.down_proj\.weight holds a scale that is NaN.* row 5"):
        loaded(path)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_packs_without_torch(family: str, tmp_path: Path) -> None:
    """Importing it takes longer than reading a small file: rows of blocks, and vectors, are found by their names."""
    path, _ = written(tmp_path, q4_k_m, family)
    code = (
        "import sys\n"
        "from ipex_assist.checkpoints.open import open_checkpoint\n"
        "from ipex_assist.executors.load import load_model\n"
        "from ipex_assist.executors.load_request import LoadRequest\n"
        "load_model(LoadRequest(open_checkpoint(sys.argv[1]), 'stored', 'native'))\n"
        "print('torch' in sys.modules)"
    )
    assert checkpoint_files.run_python(code, str(path)).split() == ["False"]
