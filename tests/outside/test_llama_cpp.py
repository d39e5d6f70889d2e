"""GGUF files that `ipex-assist quantize` writes, in llama.cpp: they load there, and mean the same."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import checkpoint_files
import pytest
from conftest import HAS_NATIVE

from ipex_assist import cli
from ipex_assist.checkpoints.open import open_checkpoint
from ipex_assist.commands.eval import TEXT
from ipex_assist.commands.perplexity import halves, perplexity
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.quantization.gguf_mix import FILE_TYPES
from ipex_assist.tokenization.tokenizer import load_tokenizer

PROGRAM = Path(os.environ.get("LLAMA_CPP_PROGRAMS", ""), "llama-perplexity")
pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason="blocks are multiplied by the native core"),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="LLAMA_CPP_PROGRAMS names no folder with llama-perplexity"),
]
WINDOW, CHUNKS = 512, 4
WIDE = {"hidden_size": 256, "intermediate_size": 512, "max_position_embeddings": 1024}
NARROW = WIDE | {"hidden_size": 96, "intermediate_size": 160}  # no multiples of 256: other types take the place


@pytest.mark.parametrize("kind", FILE_TYPES)
@pytest.mark.parametrize("sizes", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_same_perplexity(family: str, sizes: dict[str, int], kind: str, tmp_path: Path) -> None:
    """A scale in a wrong place, a tensor of another name, or rows of q in another order would be another model."""
    model = checkpoint_files.tiny_model(family, **sizes)
    model.lm_head.weight.data *= 2  # so that tokens differ by more
    checkpoint_files.save(model, tmp_path / "model")
    path = tmp_path / "model.gguf"
    flags = ["-q", "-m", str(tmp_path / "model"), "-o", str(path), "--type", kind, "--no-launch"]
    assert cli.main(["quantize", *flags]) == 0
    argv = [str(PROGRAM), "-m", str(path), "-f", str(TEXT), "-c", str(WINDOW), "--chunks", str(CHUNKS), "-t", "1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    found = re.search(r"Final estimate: PPL = ([\d.]+)", done.stdout + done.stderr)
    assert found, done.stdout[-2000:]
    checkpoint = open_checkpoint(str(path))
    tokens = load_tokenizer(checkpoint)(TEXT.read_text(encoding="utf-8"))["input_ids"][: CHUNKS * WINDOW]
    ours = load_model(LoadRequest(checkpoint, "stored", "native"))
    assert perplexity(ours, tokens, halves(len(tokens), WINDOW)).perplexity == pytest.approx(float(found[1]), rel=0.02)
