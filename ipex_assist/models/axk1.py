"""A.X K1: DeepSeek-V3, where what the experts of a layer give passes a norm before it is added."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from ipex_assist.models import deepseek_v3
from ipex_assist.models.common import refuse, sparse_kinds
from ipex_assist.models.config import Config
from ipex_assist.models.latent import latent_decoder, latent_weights
from ipex_assist.models.names import also_named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "AXK1ForCausalLM"
EXAMPLES = ("skt/A.X-K1",)
NAMES = deepseek_v3.NAMES
_NORM = "post_mlp_layernorm"


def spec(config: Config) -> DecoderSpec:
    """Dense layers have no such norm, though checkpoints store one of them, too."""
    refuse(config, scoring_func="sigmoid", moe_layer_freq=1)
    sparse = sparse_kinds(config)
    routed: dict[str, Any] = {"experts": deepseek_v3.routed_experts(config), "sparse": sparse} if any(sparse) else {}
    alike = latent_decoder("axk1", config, deepseek_v3.SIZES, **routed)
    normed = (replace(each, norm_place="pre_and_mlp_out") if each.experts else each for each in alike.layers)
    return replace(alike, layers=tuple(normed))


def stored(spec: DecoderSpec, names: Collection[str]) -> DecoderSpec:
    """The published checkpoint routes without a correction bias."""
    if any(name.endswith("e_score_correction_bias") for name in names):
        return spec
    unbiased = (
        replace(each, mlp=replace(each.experts, correction_bias=False)) if each.experts else each
        for each in spec.layers
    )
    return replace(spec, layers=tuple(unbiased))


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """DeepSeek-V3's, and the norm, which transformers has among the experts."""
    sources = latent_weights(spec, norms={"mlp_out_norm": f"mlp.{_NORM}"})
    return also_named(sources, {f"mlp.{_NORM}": _NORM})
