"""Layers that differ in heads, their width, window, rope and MLP: each computes what transformers computes for it."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_models
import torch
from conftest import EXECUTORS, HAS_NATIVE
from native_models import PRECISIONS, relative
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP, LlamaRotaryEmbedding

from ipex_assist.checkpoints.base import Checkpoint
from ipex_assist.env.errors import IpexAssistError
from ipex_assist.executors.interface import ANY_ROWS, Model, Rows
from ipex_assist.executors.load import load_model
from ipex_assist.executors.load_request import LoadRequest
from ipex_assist.executors.model_bytes import library_bytes, native_bytes
from ipex_assist.executors.native.model import NativeModel
from ipex_assist.models import ARCHITECTURES
from ipex_assist.models.attention_spec import AttentionSpec
from ipex_assist.models.mlp_spec import Experts, MlpSpec
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.native.library import unavailable
from ipex_assist.native.sizes import PlannedPasses, core_sizes

native = pytest.mark.skipif(not HAS_NATIVE, reason=unavailable() or "")

# What the layers after the first have of their own, by Hugging Face's names.
OWN: tuple[dict[str, Any], ...] = (
    {"num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 40},
    {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "rope_theta": 100.0},
    {
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "head_dim": 8,
        "intermediate_size": 150,
        "attention_bias": True,
    },
)
PROMPT = [3, 17, 150, 9, 9, 42, 77, 101, 5, 63, 12, 140, 8, 31, 90, 55, 2, 71, 118, 29]
FOLLOWING = [88, 14, 3, 3, 127, 60, 11]
LARGEST_ERROR = {"fp32": 1e-5, "bf16": 0.05, "int8": 0.1, "int4": 0.7}


class OwnRope(torch.nn.Module):
    """Attention of transformers that is given the angles of its own config."""

    def __init__(self, attention: LlamaAttention, config: Any) -> None:
        super().__init__()
        self.attention, self.rotary = [attention], LlamaRotaryEmbedding(config)
        # The attention's own names in the checkpoint.
        self.q_proj, self.k_proj, self.v_proj = attention.q_proj, attention.k_proj, attention.v_proj
        self.o_proj = attention.o_proj

    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor, **others: Any) -> Any:
        others["position_embeddings"] = self.rotary(hidden_states, position_ids)
        return self.attention[0](hidden_states=hidden_states, position_ids=position_ids, **others)


@functools.cache
def reference() -> Any:
    """A Llama whose layers 1, 2 and 3 are built by configs of their own."""
    fields = tiny_models.VARIANTS["llama"] | {"num_hidden_layers": 1 + len(OWN)}
    config = AutoConfig.for_model(**fields)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for index, own in enumerate(OWN, 1):
        theirs = AutoConfig.for_model(**fields | {"head_dim": 16} | own, attn_implementation="eager")
        model.model.layers[index].self_attn = OwnRope(LlamaAttention(theirs, index), theirs)
        model.model.layers[index].mlp = LlamaMLP(theirs)
    tiny_models.randomise(model)
    return model.eval()


class Differing(Checkpoint):
    """That model as a checkpoint, of which config.json tells the first layer alone."""

    source, path = "memory", Path("memory")
    parameter_bytes = 0

    def __init__(self) -> None:
        self.config = tiny_models.VARIANTS["llama"] | {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}
        self.generation_config, self.state = {}, reference().state_dict()

    def weight_files(self) -> list[Path]:
        return []

    def decoder_spec(self) -> DecoderSpec:
        spec = ARCHITECTURES["LlamaForCausalLM"].spec(self.config)
        first, layers = spec.layers[0], list(spec.layers)
        for own in OWN:
            bias = own.get("attention_bias", False)
            attention = replace(
                first.attention,
                heads=own["num_attention_heads"],
                kv_heads=own["num_key_value_heads"],
                head_dim=own.get("head_dim", 16),
                rope=1 if "rope_theta" in own else 0,
                qkv_bias=bias,
                output_bias=bias,
            )
            layers.append(replace(first, mixer=attention, mlp=MlpSpec(own.get("intermediate_size", 96))))
        return replace(spec, layers=tuple(layers), ropes=(*spec.ropes, Rope(100.0)))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.state.items()}

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self.state if names is None else names:
            yield name, self.state[name]


@functools.cache
def expected() -> torch.Tensor:
    """transformers' logits of all tokens."""
    with torch.no_grad():
        return reference()(torch.tensor([PROMPT + FOLLOWING])).logits[0]


@functools.cache
def loaded(executor: str, precision: str) -> Model:
    return load_model(LoadRequest(Differing(), precision, executor))


@pytest.mark.parametrize("executor", EXECUTORS)
def test_logits_equal_transformers(executor: str) -> None:
    """A layer computed with the sizes, the angles or the keys of another would be far off."""
    model = loaded(executor, "fp32")
    sequence = model.new_sequence(64)
    prompt = model.extend(sequence, PROMPT, len(PROMPT))
    steps = torch.cat([model.extend(sequence, [token]) for token in FOLLOWING])
    torch.testing.assert_close(torch.cat((prompt, steps)).float(), expected(), atol=1e-4, rtol=0)
    sequence.truncate(len(PROMPT))
    assert torch.equal(model.extend(sequence, FOLLOWING, len(FOLLOWING)), steps)


@native
@pytest.mark.parametrize("precision", [*PRECISIONS, "bf16+int8"])
def test_a_row_has_its_bits_in_any_batch(precision: str) -> None:
    """In every precision: near transformers, and the same alone, in a chunk, and beside another sequence."""
    precision, _, kv_precision = precision.partition("+")
    own = loaded("native", precision)
    assert isinstance(own, NativeModel)
    model = NativeModel(own.packed, kv_precision=kv_precision or None)
    text = PROMPT + FOLLOWING
    alone, beside, other = (model.new_sequence(64, len(text)) for _ in range(3))
    steps = torch.cat([model.extend(alone, [token]) for token in text])
    assert relative(steps, expected()) < LARGEST_ERROR[precision]
    model.extend(beside, text[:7])
    assert torch.equal(model.forward([Rows(other, [5, 6, 7], 3), Rows(beside, text[7:], 5)])[3:], steps[-5:])
    drafted, _ = model.draft(alone, [9], 4)
    copy = beside.fork()
    assert drafted[0] == int(model.extend(beside, [9]).argmax()) == int(model.extend(copy, [9]).argmax())


def test_keys_and_values_follow_the_layers() -> None:
    """Each layer adds its own KV heads and head_dim to what a token takes."""
    spec = Differing().decoder_spec()
    wanted = 2 * (2 * 16 + 4 * 16 + 1 * 32 + 8 * 8)
    assert spec.kv_bytes_per_token(2) == 2 * wanted
    assert library_bytes(spec, "fp32").unit_bytes == 4 * wanted


@native
def test_bytes_follow_the_layers() -> None:
    """A block has each layer's heads, padded; the model is larger by what its widest layer has more."""
    spec, model = Differing().decoder_spec(), loaded("native", "fp32")
    assert isinstance(model, NativeModel)
    sizes = native_bytes(spec, "fp32", wanted=1)
    padded = sum(kv_heads * (depth + width) for kv_heads, depth, width in ((2, 32, 16), (4, 32, 16), (1, 32, 32)))
    assert sizes.unit_bytes == model.block_bytes == 4 * 256 * (padded + 8 * (32 + 16))
    alike = replace(spec, layers=spec.layers[:1] * 4)
    assert sizes.weights > native_bytes(alike, "fp32", wanted=1).weights  # type: ignore[operator]
    assert sizes.workspace > native_bytes(alike, "fp32", wanted=1).workspace


@native
def test_sizes_that_no_memory_holds_are_refused() -> None:
    """Each is allowed, and all together are more bytes than 64 bits count."""
    spec = Differing().decoder_spec()
    layer = replace(spec.layers[0], mlp=Experts(1024, 1, intermediate_size=1 << 20))
    with pytest.raises(IpexAssistError, match=r"more than 2\^60 bytes"):
        core_sizes(replace(spec, hidden_size=1 << 20, layers=(layer,) * 1000), "bf16", 32, PlannedPasses(1, 1024, 1))


@native
def test_a_dense_layer_beside_experts() -> None:
    """Which experts passes read is counted over the layers that have any."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tiny_models.save(Path(folder), "qwen3-moe-dense-first")
        model = tiny_models.model(Path(folder), "native", "bf16")
    assert model.exact_rows == ANY_ROWS
    assert [layer.experts is None for layer in model.spec.layers] == [True, False]
    model.extend(model.new_sequence(8), [5])
    assert model.experts_read == 3


def test_a_spec_names_its_tables() -> None:
    """Layers of one rope and width share a table of cos and sin; others lie beside it."""
    ropes = (Rope(), Rope(100.0))
    first = AttentionSpec(4, 2, 16, rope=0)
    kinds = [first, replace(first, rotary_dim=8), replace(first, rope=1), replace(first, rope=None), first]
    layer = Differing().decoder_spec().layers[0]
    spec = replace(Differing().decoder_spec(), layers=tuple(replace(layer, mixer=each) for each in kinds), ropes=ropes)
    assert spec.rotary_tables == ((0, 8), (0, 16), (1, 16))
    assert [spec.rotary_columns(each) for each in kinds] == [
        slice(8, 24),
        slice(0, 8),
        slice(24, 40),
        None,
        slice(8, 24),
    ]
