"""Tiny models on the native core, loaded once for all tests."""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import tiny_models
import torch
import transformers

from ipex_assist.executors.interface import Model
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.native.library import Pool

VARIANTS = ["llama", "opt-350m", "gpt-bigcode", "qwen3", "mistral-window", *tiny_models.known("deepseek-v3-dense")]


PRECISIONS = ["fp32", "bf16", "int8", "int4"]
INT8_KEYS = ["fp32+int8", "bf16+int8"]  # the precision of linears, and that of keys and values


def tokens(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(tiny_models.VOCAB, (count,), generator=generator).tolist()


@functools.cache
def pool(threads: int) -> Pool:
    """Threads that the kernel places: the machine may have fewer processors than that."""
    return Pool(threads)


@functools.cache
def folder(variant: str) -> Path:
    """A saved model with a context of 1024, for all tests of this file."""
    made = tempfile.TemporaryDirectory()
    _folders.append(made)  # it is removed with its owner
    longer = {"n_positions": 1024} if variant.startswith("gpt") else {"max_position_embeddings": 1024}
    tiny_models.save(Path(made.name), variant, **longer)
    return Path(made.name)


_folders: list[object] = []


@functools.cache
def loaded(variant: str, precision: str, threads: int = 1) -> NativeModel:
    precision, _, kv_precision = precision.partition("+")
    if kv_precision:
        return NativeModel(loaded(variant, precision, threads).packed, kv_precision=kv_precision)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ipex_assist.executors.native.loading.planned_pool", lambda: pool(threads))
        made = tiny_models.model(folder(variant), "native", precision)
    assert isinstance(made, NativeModel)
    assert made.packed.pool.threads == threads
    return made


def text(variant: str, precision: str, threads: int = 1) -> tiny_models.Text:
    return tiny_models.Text(loaded(variant, precision, threads), 700)


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).norm() / expected.norm())


@functools.cache
def transformers_logits(variant: str, prompt: tuple[int, ...]) -> torch.Tensor:
    """Those of every token of a prompt, as transformers computes them."""
    kind = getattr(transformers, json.loads((folder(variant) / "config.json").read_text())["architectures"][0])
    model = kind.from_pretrained(folder(variant), attn_implementation="eager").eval()
    with torch.no_grad():
        return model(torch.tensor([prompt])).logits[0]


def in_parts(model: Model, prompt: list[int], parts: Sequence[int]) -> torch.Tensor:
    """Logits of a prompt's rows that come in passes of these lengths, most with a rejected draft after them."""
    sequence, rows, done = model.new_sequence(len(prompt) + 16), [], 0
    for part in parts:
        rows.append(model.extend(sequence, prompt[done : done + part], part))
        done += part
        if done + 9 < len(prompt):
            model.extend(sequence, tokens(9, done), 9)
            sequence.truncate(done)
    assert done == len(prompt)
    return torch.cat(rows)
