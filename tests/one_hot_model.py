"""A native model whose logits a test chooses: row i of a table after token i, whatever came before."""

from __future__ import annotations

import functools
import random

import numpy as np
import torch
from numpy.typing import NDArray

from ipex_assist.executors.interface import Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.row_choice import RowChoice, SampledRows
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.mlp_spec import MlpSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import weight_shape
from ipex_assist.native.library import Pool
from ipex_assist.native.model import PackedModel
from ipex_assist.speculative.choosing.sampling import Sampling

HIDDEN = 32
ROWS = 28  # of `table`
LARGE = 1e18  # what a one is embedded as in the last two tokens: their products leave the range of fp32


@functools.cache
def pool(threads: int) -> Pool:
    return Pool(threads)


def one_hot_model(logits: NDArray[np.float32], threads: int = 1) -> NativeModel:
    """logits: (rows, vocab), finite. The model has no norms, and its attention and MLP add nothing.

    Rows HIDDEN - 2 and HIDDEN - 1 are multiplied with 1e18, and the one is added to the other: there 1e30 becomes
    infinity, and two of them with opposite signs NaN.
    """
    rows, vocabulary = logits.shape
    assert rows <= HIDDEN <= vocabulary
    layer = LayerSpec(AttentionSpec(1, 1, 32), MlpSpec(32))
    spec = DecoderSpec("llama", vocabulary, HIDDEN, (layer,), 4096, final_norm=False)
    table, head = torch.zeros(vocabulary, HIDDEN), torch.zeros(vocabulary, HIDDEN)
    table[:HIDDEN] = torch.eye(HIDDEN)
    table[HIDDEN - 2 : HIDDEN] *= LARGE
    table[HIDDEN - 1, HIDDEN - 2] = LARGE
    head[:, :rows] = torch.from_numpy(logits.T.copy())
    weights = {"embed_tokens.weight": table, "lm_head.weight": head}
    names = ["attention_norm", "q_proj", "k_proj", "v_proj", "o_proj", "mlp_norm", "up_proj", "down_proj"]
    if layer.each_mlp.gated:
        names.append("gate_proj")
    for name in names:
        full = f"layers.0.{name}.weight"
        weights[full] = torch.zeros(weight_shape(spec, full))
    packed = PackedModel(spec, "fp32", pool(threads))
    packed.allocate()
    for name, weight in weights.items():
        packed.pack(name, weight)
    return NativeModel(packed)


def sample_each(model: NativeModel, tokens: list[int], choices: list[RowChoice]) -> SampledRows:
    """The choices after each of these tokens, all in one pass, as a text of its own each."""
    texts = [model.new_sequence(4) for _ in tokens]
    return model.sample([Rows(text, [token]) for text, token in zip(texts, tokens, strict=True)], choices)


def table(vocabulary: int) -> NDArray[np.float32]:
    """Rows of every shape: spread, nearly flat, peaked, with many equal logits, all equal, long-tailed."""
    chance = np.random.default_rng(vocabulary)
    rows = chance.normal(size=(ROWS, vocabulary)) * 3
    rows[4:8] *= 0.01
    rows[8:12] = np.round(rows[8:12] * 2) / 2
    rows[12] = 1.25
    rows[13:17] = -2 * np.log(1 + chance.permutation(vocabulary))
    rows[17, vocabulary // 2] = 40
    rows[18, vocabulary - 1] = rows[18, 0] = 9
    rows[19:22] *= 10
    return rows.astype(np.float32)


@functools.cache
def model_of_rows(vocabulary: int, threads: int = 1) -> NativeModel:
    """Its logits are those of `table`."""
    return one_hot_model(table(vocabulary), threads)


def some_sampling(chance: random.Random, vocabulary: int, prompt: int) -> Sampling:
    """Options at random; each is off about half of the time."""

    def maybe(*values: float) -> float:
        return chance.choice(values) if chance.random() < 0.5 else values[0]

    return Sampling(
        do_sample=chance.random() < 0.9,
        temperature=maybe(1.0, 0.001, 0.3, 0.8, 1.5, 100.0),
        top_k=int(maybe(0, 1, 5, 50, vocabulary - 1, vocabulary, 10 * vocabulary)),
        top_p=maybe(1.0, 1e-6, 0.1, 0.5, 0.9, 0.999),
        min_p=maybe(0.0, 0.01, 0.5, 1.0),
        seed=chance.randrange(1 << 63),
        logit_bias={chance.randrange(2 * vocabulary): chance.uniform(-9, 9) for _ in range(int(maybe(0, 1, 30)))},
        repetition_penalty=maybe(1.0, 1.3, 0.7),
        presence_penalty=maybe(0.0, 0.5, -1.0),
        frequency_penalty=maybe(0.0, 0.25, -0.5),
        prompt_length=prompt,
    )
