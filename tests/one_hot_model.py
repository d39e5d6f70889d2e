"""A native model whose logits a test chooses: row i of a table after token i, whatever came before."""

from __future__ import annotations

import functools

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

HIDDEN = 32
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
