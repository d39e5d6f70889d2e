"""Attended values that a sigmoid gates before the output projection, against transformers' attention of Qwen3-Next."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from conftest import HAS_NATIVE
from native_models import PRECISIONS, pool, relative
from test_rows import some_tokens

from ipex_assist.executors.interface import Model, Rows
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.executors.torch.exactness import find_plan
from ipex_assist.executors.torch.kernels import TorchKernels
from ipex_assist.executors.torch.model import TorchModel
from ipex_assist.executors.torch.weights import load_weights
from ipex_assist.models.layers import uniform_decoder
from ipex_assist.models.names import HEAD_NORMS, LLAMA_LINEARS, LLAMA_NORMS, gated_queries, merged, named
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source, head_dim_of, part_of
from ipex_assist.native.library import unavailable
from ipex_assist.native.model import PackedModel

pytestmark = pytest.mark.one_stack  # other versions of transformers have no such attention

TEXT = some_tokens(300, 7)
LARGEST_ERROR = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.1, "int4": 0.7}
FIELDS: dict[str, Any] = {
    **{"vocab_size": 160, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2},
    **{"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 20, "max_position_embeddings": 512},
}


def spec() -> DecoderSpec:
    return uniform_decoder(
        model_type="gated",
        **FIELDS,
        qk_norm="head",
        qkv_bias=True,
        output_bias=True,
        output_gate=True,
        rotary_dim=10,
        ropes=(Rope(),),
    )


def sources() -> dict[str, Source]:
    """The checkpoint's names of Llama, but for query and gate in one tensor, and norms of 1 + w."""
    return named(
        spec(),
        linears={**LLAMA_LINEARS, "g_proj": "self_attn.q_proj"},
        norms={**LLAMA_NORMS, **HEAD_NORMS},
        fields=merged(gated_queries(), {leaf: {"plus": 1.0} for leaf in HEAD_NORMS}),
    )


@functools.cache
def reference() -> Any:
    """A Llama of transformers with the attention of Qwen3-Next."""
    transformers = pytest.importorskip("transformers")
    theirs = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    gated = transformers.Qwen3NextConfig(**FIELDS, rope_parameters=rope, attention_bias=True)
    gated._attn_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**FIELDS, attn_implementation="eager"))
    model.model.rotary_emb = theirs.Qwen3NextRotaryEmbedding(gated)
    for index, layer in enumerate(model.model.layers):
        layer.self_attn = theirs.Qwen3NextAttention(gated, index)
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(std=0.2).add_(1.0 if weight.dim() == 1 else 0.0)
    return model.eval()


@functools.cache
def expected() -> torch.Tensor:
    """transformers' logits of all tokens of the text."""
    with torch.no_grad():
        return reference()(torch.tensor([TEXT])).logits[0]


@functools.cache
def native_model(precision: str, threads: int = 1) -> NativeModel:
    precision, _, kv_precision = precision.partition("+")
    packed, tensors = PackedModel(spec(), precision, pool(threads), 32), reference().state_dict()
    packed.allocate()
    for ours, source in sources().items():
        packed.pack(ours, part_of(tensors[source.name], source, head_dim_of(spec(), ours)).contiguous())
    return NativeModel(packed, kv_precision=kv_precision or None)


@functools.cache
def torch_model() -> TorchModel:
    tensors, kernels = reference().state_dict(), TorchKernels(torch.float32)
    with torch.inference_mode():
        weights = load_weights(spec(), sources(), tensors, tensors.items(), kernels)
        return TorchModel(spec(), weights, kernels, find_plan(spec(), weights, kernels))


def check(model: Model) -> None:
    """A prompt, and steps after it."""
    sequence = model.new_sequence(len(TEXT))
    prompt = model.extend(sequence, TEXT[:280], 280)
    steps = torch.cat([model.extend(sequence, [token]) for token in TEXT[280:]])
    torch.testing.assert_close(torch.cat((prompt, steps)).float(), expected(), atol=1e-4, rtol=0)


def test_gates_in_torch() -> None:
    """Gates of another head's values, or values that are gated after the output projection."""
    check(torch_model())


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
def test_gates_in_the_core() -> None:
    """Likewise, in the prefill path and the decode path."""
    check(native_model("fp32"))


@pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")
@pytest.mark.parametrize("precision", [*PRECISIONS, "bf16+int8"])
def test_a_gated_row_has_its_bits_in_any_batch(precision: str) -> None:
    """Step by step, as a prompt, as a draft and beside another sequence, on one thread and on three."""
    model, threads = native_model(precision), native_model(precision, 3)
    alone, whole, beside, other = (each.new_sequence(320) for each in (model, threads, threads, threads))
    steps = torch.cat([model.extend(alone, [token]) for token in TEXT])
    assert relative(steps, expected()) < LARGEST_ERROR[precision.partition("+")[0]]
    assert torch.equal(threads.extend(whole, TEXT, len(TEXT)), steps)
    threads.extend(beside, TEXT[:290])
    rows = [Rows(other, TEXT[5:8], 3), Rows(beside, TEXT[290:], 10)]
    assert torch.equal(threads.forward(rows)[3:], steps[-10:])
    drafted, _ = threads.draft(beside, [9], 4)
    assert drafted[0] == int(model.extend(alone, [9]).argmax())
