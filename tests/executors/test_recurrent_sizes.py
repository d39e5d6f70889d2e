"""Recurrent mixers of random sizes: the core against the torch executor, and a row's bits on any number of threads."""

from __future__ import annotations

import zlib

import pytest
import torch
from conftest import HAS_NATIVE
from hypothesis import given, settings
from hypothesis import strategies as st
from native_models import PRECISIONS, pool, relative, tokens

from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.torch.exactness import find_plan
from ipex_assist.executors.torch.kernels import TorchKernels
from ipex_assist.executors.torch.model import TorchModel
from ipex_assist.executors.torch.weights import load_weights
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.mlp_spec import MlpSpec
from ipex_assist.models.names import named
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec, LayerSpec
from ipex_assist.models.weights import Source, weight_shape
from ipex_assist.native.library import unavailable
from ipex_assist.native.model import PackedModel

pytestmark = [
    pytest.mark.one_stack,
    pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or ""),
]

VOCAB = 50
TEXT = [token % VOCAB for token in tokens(70, 3)]
LARGEST_ERROR = {"fp32": 1e-4, "bf16": 0.1, "int8": 0.3, "int4": 1.5}


@st.composite
def mixers(draw: st.DrawFn) -> RecurrentSpec:
    """Heads and groups of any size, with what a mixer may have."""
    kinds = ["gated_delta", "kimi_delta", "mamba2", "mamba2", "mamba1", "mamba1", "short_conv", "rg_lru"]
    kind = draw(st.sampled_from(kinds))
    key_heads = draw(st.integers(1, 3))
    heads = key_heads * draw(st.sampled_from([1, 2, 5]))
    key_dim, value_dim = draw(st.sampled_from([1, 4, 12, 16, 33, 64])), draw(st.sampled_from([1, 5, 16, 24, 64, 80]))
    if kind == "short_conv":
        heads, key_heads, key_dim = 1, 1, value_dim
    if kind == "kimi_delta":
        key_heads, value_dim = heads, key_dim
    if kind == "mamba1":
        heads, key_heads = 1, 1
    if kind == "rg_lru":
        key_heads, key_dim, value_dim = 1, 1, draw(st.sampled_from([16, 32, 144]))
    ranks = {"kimi_delta": [0, 1, 7, 16, 130], "mamba1": [1, 7, 16, 130], "rg_lru": [value_dim]}
    bias = draw(st.booleans())
    return RecurrentSpec(
        kind,
        heads,
        key_heads,
        key_dim,
        value_dim,
        conv_kernel=draw(st.sampled_from([1, 2, 3, 4, 16])),
        conv_bias=draw(st.booleans()),
        input_bias=bias,
        output_bias=draw(st.booleans()),
        norm_groups=draw(st.sampled_from([0, 1, key_heads, heads])) if kind == "mamba2" else 0,
        gate_rank=draw(st.sampled_from(ranks.get(kind, [0]))),
        selection_norm=draw(st.sampled_from([None, "unweighted", "weighted"])) if kind == "mamba1" else None,
        decay_bound=draw(st.sampled_from([None, -5.0, -0.2])) if kind == "kimi_delta" else None,
        step_limit=draw(st.sampled_from([(0.0, float("inf")), (0.5, 0.8)])),
    )


@st.composite
def specs(draw: st.DrawFn) -> DecoderSpec:
    """Recurrent layers with an MLP or without, alone or with one of attention among them."""
    mlp = MlpSpec(48, draw(st.sampled_from(["silu", "relu2"])), gated=draw(st.booleans()))
    layers = [LayerSpec(draw(mixers()), draw(st.sampled_from([mlp, None]))) for _ in range(2)]
    if draw(st.booleans()):
        layers.insert(draw(st.integers(0, 2)), LayerSpec(AttentionSpec(2, 1, 16), draw(st.sampled_from([mlp, None]))))
    return DecoderSpec("random", VOCAB, draw(st.sampled_from([40, 64, 200])), tuple(layers), 512)


def weights_of(spec: DecoderSpec) -> dict[str, torch.Tensor]:
    """Random ones, by our names."""
    parts = ("q_in", "k_in", "v_in", "a_in", "b_in", "z_in", "a_low_in", "z_low_in", "mixer_out")
    vectors = {leaf for mixer in spec.recurrents for leaf in mixer.vectors}
    names = {**dict.fromkeys(parts, "x"), **{leaf: f"{leaf}.weight" for leaf in vectors}}
    made = {}
    for name in named(spec, recurrent=names):
        shape = weight_shape(spec, name)
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
        made[name] = drawn * (1.0 / shape[-1] ** 0.5 if len(shape) == 2 and "embed" not in name else 0.4)
    return made


@pytest.mark.parametrize("precision", PRECISIONS)
@settings(max_examples=15, deadline=None)
@given(spec=specs(), threads=st.integers(2, 4), cut=st.integers(1, 60))
def test_any_size(precision: str, spec: DecoderSpec, threads: int, cut: int) -> None:
    """Columns beyond the last ones of a head or a group, a unit of a norm that threads share, a convolution of one."""
    tensors = weights_of(spec)
    models = []
    for count in (1, threads):
        packed = PackedModel(spec, precision, pool(count), 32)
        packed.allocate()
        for name, tensor in tensors.items():
            packed.pack(name, tensor)
        models.append(NativeModel(packed))
    alone, whole = (model.new_sequence(100) for model in models)
    steps = torch.cat([models[0].extend(alone, [token]) for token in TEXT])
    first = models[1].extend(whole, TEXT[:cut], cut)
    assert torch.equal(torch.cat((first, models[1].extend(whole, TEXT[cut:], len(TEXT) - cut))), steps)
    sources = {name: Source(name) for name in tensors}
    kernels = TorchKernels(torch.float32)
    with torch.inference_mode():
        weights = load_weights(spec, sources, tensors, tensors.items(), kernels)
        reference = TorchModel(spec, weights, kernels, find_plan(spec, weights, kernels))
    expected = reference.extend(reference.new_sequence(100), TEXT, len(TEXT))
    assert relative(steps, expected) < LARGEST_ERROR[precision]
