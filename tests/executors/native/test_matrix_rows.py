"""Large matrices that are packed in ranges of rows: the same image as of whole ones, and little memory beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gguf_converter
import load_memory
import pytest
import quantized_files
import tiny_models
import torch
from conftest import HAS_NATIVE

from ipex_assist.bench.pairs import first_layers, published_config
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.native import matrix_rows
from ipex_assist.native.library import unavailable

pytestmark = [pytest.mark.one_stack, pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")]

SMALL = {"hidden_size": 128, "intermediate_size": 96, "vocab_size": 1000}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 4}


def image(checkpoint: Checkpoint, precision: str) -> bytes:
    model = load_model(LoadRequest(checkpoint, precision, "native", cache_packed=False))
    return b"".join(bytes(piece) for piece in model.packed.image())  # type: ignore[attr-defined]


def random_model(source: str, layers: int, **changes: object) -> RandomCheckpoint:
    return RandomCheckpoint(source, first_layers(published_config(source) | SMALL | HEADS | changes, layers))


def gguf_file(folder: Path) -> Checkpoint:
    tiny_models.save(folder, "qwen3.5")
    return open_checkpoint(str(gguf_converter.convert(folder, "qwen35", q8=True)))  # floats are read from the file


def gptq(folder: Path) -> Checkpoint:
    quantized_files.save(folder, "llama")
    return open_checkpoint(str(folder))


def fp8(folder: Path) -> Checkpoint:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(load_memory, "published_config", lambda source: published_config(source) | SMALL | HEADS)
        load_memory.write("Qwen/Qwen3-0.6B", 2, folder / "fp8", fp8=True)
    return open_checkpoint(str(folder / "fp8"))


MIXTURE = {"num_local_experts": 3, "num_experts_per_tok": 2, "mamba_n_heads": 4}


@pytest.mark.parametrize(
    ("make", "precision"),
    [
        (lambda folder: random_model("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 2), "int4"),
        (lambda folder: random_model("Qwen/Qwen3-0.6B", 2), "fp32"),  # tied, so that the head is the table
        (lambda folder: random_model("ibm-granite/granite-4.0-h-small", 6, **MIXTURE), "int8"),  # stacks of experts
        (lambda folder: random_model("google/gemma-4-E4B", 2, vocab_size_per_layer_input=1000), "int4"),
        (gguf_file, "int8"),
        (gptq, "int4"),
        (fp8, "fp8"),
    ],
    ids=["untied", "tied", "experts", "per-layer", "gguf", "gptq", "fp8"],
)
def test_the_same_image_as_of_whole_tensors(
    make: Callable[[Path], Checkpoint], precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a range in a wrong place, a last one that is short, or an expert's that begins in another one."""
    whole = image(make(tmp_path / "whole"), precision)
    ranges: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(matrix_rows, "LARGE_BYTES", 1)
        patch.setattr(matrix_rows, "RANGE_BYTES", 128 * 2 * 48)
        patch.setattr(matrix_rows.MatrixRows, "pack", _noted(matrix_rows.MatrixRows.pack, ranges))
        assert image(make(tmp_path / "ranges"), precision) == whole
    assert "embed_tokens.weight" in ranges


def _noted(pack: Callable[..., None], names: list[str]) -> Callable[..., None]:
    def noted(self: object, model: object, ours: str, source: object) -> None:
        names.append(ours)
        pack(self, model, ours, source)

    return noted


def test_rows_are_those_of_the_tensor() -> None:
    """Random weights by rows, across the spans that have a generator each."""
    checkpoint = random_model("TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1, vocab_size=20_000)
    [(_, whole)] = checkpoint.tensors(["lm_head.weight"])
    read = checkpoint.row_reader("lm_head.weight")
    assert read is not None
    for first, last in ((0, 16), (8190, 8195), (16_000, 20_000)):
        assert torch.equal(read(first, last), whole[first:last])


def test_not_finite_is_named_by_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is counted from the range, or a weight that is named as we do."""
    monkeypatch.setattr(matrix_rows, "LARGE_BYTES", 1)
    monkeypatch.setattr(matrix_rows, "RANGE_BYTES", 1)
    checkpoint = gptq(tmp_path)
    reader = checkpoint.row_reader("lm_head.weight")
    assert reader is not None

    def damaged(name: str, precision: str = "bf16") -> Callable[[int, int], torch.Tensor]:
        def rows(first: int, last: int) -> torch.Tensor:
            found = reader(first, last)
            if first <= 37 < last:
                found[37 - first, 5] = float("inf")
            return found

        return rows

    monkeypatch.setattr(checkpoint, "row_reader", damaged)
    with pytest.raises(IpexAssistError, match=r"embed_tokens.weight holds infinity in row 37, column 5"):
        image(checkpoint, "int4")


CODE = """
import json, re, sys
from pathlib import Path
from ipex_assist.bench.random_checkpoint import RandomCheckpoint
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
import torch

def bytes_of(name):
    return 1024 * int(re.search(name + r":\\s*(\\d+)", Path("/proc/self/status").read_text())[1])

def load(config):
    return load_model(LoadRequest(RandomCheckpoint("m", json.loads(config)), "int4", "native"))

small = load(sys.argv[1])
before = bytes_of("VmRSS")
model = load(sys.argv[2])
print((bytes_of("VmHWM") - before) / model.packed.nbytes)
"""


def test_loading_takes_little_more_than_the_model() -> None:
    """A table of 200 MB that is whole in memory while it is packed: 1.8 times the model."""
    config = published_config("TinyLlama/TinyLlama-1.1B-Chat-v1.0") | {"num_hidden_layers": 1, "hidden_size": 512}
    sizes = [json.dumps(config | {"vocab_size": size, "num_attention_heads": 8}) for size in (1000, 200_000)]
    environment = {**os.environ, "IPEX_ASSIST_CACHE_PACKED": "0"}
    done = subprocess.run([sys.executable, "-c", CODE, *sizes], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert 0.9 < float(done.stdout) < 1.15
