"""Configs of families with recurrent layers as publishers wrote them, before transformers renamed what they say."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models

from ipex_assist.models import ARCHITECTURES
from ipex_assist.models.config import ConfigError, NotComputed
from ipex_assist.models.recurrent_spec import RecurrentSpec
from ipex_assist.models.spec import DecoderSpec

pytestmark = pytest.mark.one_stack  # others lack some of these families

INFINITE: list[dict[str, Any]] = [
    {},
    {"time_step_limit": None},
    {"time_step_limit": [0.0, float("inf")]},
    {"time_step_limit": [0.0, {"__float__": "Infinity"}]},
]


def spec(variant: str, **changes: Any) -> DecoderSpec:
    fields = tiny_models.VARIANTS[variant] | changes
    return next(each for each in ARCHITECTURES.values() if each.model_type == fields["model_type"]).spec(fields)


def test_blocks_by_letters() -> None:
    """Mixers and what follows them make one layer; a pattern is the list of its letters' names."""
    names = ["mamba", "mlp", "linear_attention", "attention", "moe"]
    found = spec("nemotron-h", hybrid_override_pattern="M-M*E", mlp_bias=False)
    assert found == spec("nemotron-h", hybrid_override_pattern="", layers_block_type=names, mlp_bias=False)
    kinds = [(isinstance(each.mixer, RecurrentSpec), each.mlp is not None, bool(each.experts)) for each in found.layers]
    assert kinds == [(True, True, False), (True, False, False), (False, True, True)]
    sources = ARCHITECTURES["NemotronHForCausalLM"].weights(found)
    assert sources["layers.2.experts.5.up_proj.weight"].name == "backbone.layers.4.mixer.experts.5.up_proj.weight"
    assert sources["layers.2.mlp_norm.weight"].alternatives == ("model.layers.4.norm.weight",)


@pytest.mark.parametrize("pattern", ["-M", "M--"])
def test_a_block_without_a_mixer(pattern: str) -> None:
    """It would be an MLP of no layer."""
    with pytest.raises(NotComputed, match="follows no mixer"):
        spec("nemotron-h", hybrid_override_pattern=pattern)


def test_sizes_of_lfm2() -> None:
    """Its first files say block_ff_dim, of which the size of the MLP is two thirds, rounded up."""
    sizes = {"block_ff_dim": 12288, "block_multiple_of": 256}
    assert spec("lfm2", **sizes).layers[0].inner_size == 8192
    assert spec("lfm2", **sizes, block_auto_adjust_ff_dim=False).layers[0].inner_size == 12288
    kinds = [each.recurrent is None for each in spec("lfm2", layer_types=None, full_attn_idxs=[2]).layers]
    assert kinds == [False, False, True]


def test_granites_without_mamba() -> None:
    """All of its layers are attention then, with positions."""
    found = spec("granite-hybrid", layer_types=["attention"] * 3, position_embedding_type="rope")
    assert (found.recurrents, len(found.ropes)) == ((), 1)
    assert spec("granite-hybrid", position_embedding_type="nope").ropes == ()


@pytest.mark.parametrize("limit", INFINITE)
def test_steps_without_an_end(limit: dict[str, Any]) -> None:
    """JSON's Infinity, and transformers' way to write it."""
    assert spec("bamba", **limit).recurrents[0].step_limit == (0.0, float("inf"))


@pytest.mark.parametrize("limit", [[0.0], [1.0, 0.5], [0.0, "x"], [0.0, None], 3, [True, 2.0], [float("nan"), 1.0]])
def test_steps_that_cannot_be(limit: Any) -> None:
    """A limit that is none."""
    with pytest.raises(ConfigError, match="time_step_limit"):
        spec("bamba", time_step_limit=limit)


@pytest.mark.skipif(not tiny_models.known("jamba"), reason="this transformers has no Jamba")
@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"attn_layer_period": 0}, "attn_layer_period is 0 .* 1 at least"),
        ({"expert_layer_offset": 4}, "expert_layer_offset is 4 .* from 0 to 3"),
        ({"mamba_dt_rank": 0}, "mamba_dt_rank is 0"),
        ({"mamba_dt_rank": "half"}, "mamba_dt_rank is .half.*whole number"),
        ({"mamba_d_conv": 99}, "mamba_d_conv is 99"),
    ],
)
def test_jambas_that_cannot_be(changed: dict[str, Any], refusal: str) -> None:
    """Periods that divide by zero, layers that never come, steps without a rank: by the file's names."""
    with pytest.raises(ConfigError, match=refusal):
        spec("jamba", **changed)


def test_mambas_as_they_are_published() -> None:
    """Falcon Mamba says a width and an `expand` of another one; Mamba's first files say nothing of the head."""
    falcon = spec("falcon-mamba", hidden_size=4096, intermediate_size=8192, expand=16, tie_word_embeddings=False)
    assert (falcon.recurrents[0].value_size, falcon.tied_head) == (8192, False)
    fields = {name: value for name, value in tiny_models.VARIANTS["mamba"].items() if name != "tie_word_embeddings"}
    architecture = ARCHITECTURES["MambaForCausalLM"]
    found = architecture.spec(fields | {"time_step_rank": "auto", "mixer_rms_eps": 0.5})
    mixer = found.recurrents[0]
    assert (found.tied_head, mixer.value_size, mixer.gate_rank) == (True, 120, 4)
    assert (mixer.selection_norm, mixer.norm_eps) == (None, None)
    sources = architecture.weights(found)
    assert "backbone.embedding.weight" in sources["embed_tokens.weight"].alternatives
    assert not any("norm" in name for name in sources if "_in_" in name or "_low_" in name)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"mixer_rms_eps": 0.0}, "mixer_rms_eps is 0.0"),
        ({"layer_norm_epsilon": 2.0}, "layer_norm_epsilon is 2.0"),
        ({"intermediate_size": -4}, "intermediate_size is -4"),
        ({"expand": 0}, "expand is 0 .* 1 at least"),
        ({"hidden_size": -4}, "hidden_size is -4"),
        ({"time_step_rank": 0}, "time_step_rank is 0"),
        ({"state_size": 0}, "state_size is 0"),
        ({"conv_kernel": 99}, "conv_kernel is 99"),
        ({"hidden_act": "gelu"}, "another activation than silu"),
    ],
)
def test_mambas_that_cannot_be(changed: dict[str, Any], refusal: str) -> None:
    """By the file's names; the norms of the mixer have an epsilon beside the model's."""
    with pytest.raises((ConfigError, NotComputed), match=refusal):
        spec("falcon-mamba", **changed)


def test_names_in_errors() -> None:
    """Those that the file has."""
    with pytest.raises(ConfigError, match="conv_L_cache"):
        spec("lfm2", conv_L_cache=99)
    with pytest.raises(ConfigError, match="mamba_n_heads"):
        spec("bamba", mamba_n_heads=5)
