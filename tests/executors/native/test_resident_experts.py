"""Mixtures of which some experts are in memory, and others are read from the GGUF file as they are needed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import checkpoint_files
import gguf_converter
import numpy as np
import pytest
import tiny_models
import torch
from conftest import HAS_NATIVE
from gguf import GGMLQuantizationType as Type

from ipex_assist.checkpoints.gguf import GgufCheckpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError, UsageError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.model_bytes import checkpoint_bytes
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.native.resident import check_experts
from ipex_assist.native.expert_reads import expert_reads
from ipex_assist.native.library import unavailable

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

EXPERTS, LAYERS = 8, 3
# Variants of tests/tiny_models.py and llama.cpp's names; the second has a dense layer and shared experts.
MIXTURES = {"qwen3-moe": "qwen3moe", "ernie4-5-moe": "ernie4_5-moe"}
TOKENS = random.Random(4).choices(range(tiny_models.VOCAB), k=60)


@pytest.fixture(scope="module", params=MIXTURES)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    sizes = {"moe_intermediate_size": 64, "num_hidden_layers": LAYERS}
    tiny_models.save(folder, request.param, **sizes)
    return gguf_converter.convert(folder, MIXTURES[request.param], q8=True)


def request_of(path: Path, resident: int | None) -> LoadRequest:
    return LoadRequest(open_checkpoint(str(path)), "stored", "native", resident=resident)


def loaded(path: Path, resident: int | None) -> NativeModel:
    model = load_model(request_of(path, resident))
    assert isinstance(model, NativeModel)
    return model


def planned(path: Path, resident: int | None) -> int:
    """Bytes of weights, by the plan."""
    size = checkpoint_bytes(open_checkpoint(str(path)), "stored", wanted=1, resident=resident).weights
    assert size is not None
    return size


def least(path: Path) -> int:
    """The fewest bytes of weights that there may be in memory: with slots for the experts of one token."""
    return planned(path, 1)


def logits_of(model: NativeModel, tokens: list[int]) -> torch.Tensor:
    return tiny_models.Text(model).forward(tokens, last=len(tokens))


def test_texts_are_the_same_with_the_fewest_slots(path: Path) -> None:
    """A prompt that wants more experts of a layer than there are slots, steps, and rows of several texts in any order:
    every bit is that of a model that is in memory as a whole."""
    whole, part = loaded(path, None), loaded(path, least(path))
    expected = logits_of(whole, TOKENS)
    assert torch.equal(logits_of(part, TOKENS), expected)
    texts = [tiny_models.Text(part) for _ in range(3)]
    chosen = random.Random(5)
    for _ in range(90):
        text = chosen.choice(texts)
        rows = min(chosen.choice([1, 1, 2, 5]), len(TOKENS) - text.length)
        if not rows:
            text.truncate(chosen.randrange(len(TOKENS)))
            continue
        at = text.length
        got = text.forward(TOKENS[at : at + rows], last=rows)
        assert torch.equal(got, expected[at : at + rows])
    reads = expert_reads(part.packed)
    assert 0 < reads.found < reads.wanted
    assert reads.read_bytes > 0


def test_the_plan_is_what_it_takes(path: Path) -> None:
    """To the byte: never more than was asked for, and all of it where there is room."""
    size = least(path)
    whole = loaded(path, 1 << 30)
    for resident in (size, size + 40_000, size + 100_000, 1 << 30):
        made = loaded(path, resident)
        assert planned(path, resident) == made.packed.resident_bytes <= resident
    assert planned(path, 1 << 30) >= planned(path, None)  # with what experts are read into
    for _ in range(2):
        logits_of(whole, TOKENS)
    reads = expert_reads(whole.packed)
    assert reads.read_bytes < os.path.getsize(path)  # each expert once
    assert reads.found >= reads.wanted // 2
    assert expert_reads(loaded(path, None).packed) == (0, 0, 0, 0, 0.0)


def test_what_is_used_often_stays(path: Path) -> None:
    """Experts of a token that comes again and again are found, whatever a prompt read between."""
    model = loaded(path, least(path) + 100_000)
    text = tiny_models.Text(model)
    text.forward([TOKENS[0]])

    def missed() -> int:
        before = expert_reads(model.packed)
        text.truncate(0)
        text.forward([TOKENS[0]])
        after = expert_reads(model.packed)
        return after.wanted - before.wanted - (after.found - before.found)

    for _ in range(50):
        missed()
    assert missed() == 0
    logits_of(model, TOKENS)
    assert missed() == 0


def test_a_file_that_ends_early_is_said(path: Path, tmp_path: Path) -> None:
    """In a pass: which expert, of which file; and when it is whole again the model goes on, with the right numbers."""
    copy = tmp_path / "copy.gguf"
    content = path.read_bytes()
    copy.write_bytes(content)
    model = loaded(copy, least(copy))
    expected = logits_of(model, TOKENS)
    os.truncate(copy, len(content) // 3)
    said = r"expert \d+ of layer \d+: .*copy\.gguf cannot be read: it ends \d+ bytes too early\. Was it replaced"
    with pytest.raises(IpexAssistError, match=said):
        logits_of(model, TOKENS)
    with copy.open("r+b") as file:  # the same file, and not another one of its name
        file.write(content)
    assert torch.equal(logits_of(model, TOKENS), expected)
    copy.unlink()  # an open file stays
    assert torch.equal(logits_of(model, TOKENS), expected)


def test_a_damaged_scale_is_said(path: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(path))
    assert isinstance(checkpoint, GgufCheckpoint)
    tensor = checkpoint.header.tensors["blk.2.ffn_down_exps.0.weight"]
    damaged = bytearray(path.read_bytes())
    for row in range(7, 64):
        at = tensor.offset + row * 34 * 2
        damaged[at : at + 2] = np.float16(np.nan).tobytes()
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(damaged)
    with pytest.raises(IpexAssistError, match="expert 0 of layer 2: a scale that is NaN or infinity in row 7"):
        logits_of(loaded(copy, least(copy)), TOKENS)


def test_what_it_is_not_for(path: Path, tmp_path: Path) -> None:
    """Each in a sentence: too little, another precision, a dense model, a folder."""
    with pytest.raises(UsageError, match=r"--resident 0\.02 GiB: .* takes 0\.02 GiB at least"):
        loaded(path, least(path) - 1)
    with pytest.raises(UsageError, match="would run on native in int8"):
        load_model(LoadRequest(open_checkpoint(str(path)), "int8", "native", resident=1 << 30))
    with pytest.raises(UsageError, match="would run on torch in bf16"):
        load_model(LoadRequest(open_checkpoint(str(path)), "bf16", "torch", resident=1 << 30))
    dense = tmp_path / "dense.gguf"
    checkpoint_files.write_gguf(checkpoint_files.tiny_model("llama"), dense, Type.Q8_0)
    with pytest.raises(UsageError, match=r"is for mixtures of experts, and .* is none"):
        loaded(dense, 1 << 30)
    with pytest.raises(UsageError, match=r"1 matrices of experts of .* are not in blocks"):
        check_experts("m", ["layers.0.experts.0.up_proj.weight", "lm_head.weight"], [], loaded(path, None).packed.pool)


def test_a_child_of_fork_reads_for_itself(path: Path) -> None:
    """Its parent's threads are not in it."""
    code = f"""
import os, sys
sys.path.insert(0, {str(Path(tiny_models.__file__).parent)!r})
from pathlib import Path
import test_resident_experts as here
path = Path({str(path)!r})
model = here.loaded(path, here.least(path))
expected = here.logits_of(model, here.TOKENS)
child = os.fork()
if not child:
    same = (here.logits_of(model, here.TOKENS) == expected).all()
    os._exit(0 if same else 3)
_, status = os.waitpid(child, 0)
assert (here.logits_of(model, here.TOKENS) == expected).all()
sys.exit(os.waitstatus_to_exitcode(status))
"""
    folder = Path(__file__).parent
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, timeout=120)
