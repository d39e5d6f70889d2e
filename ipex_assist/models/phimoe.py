"""Phi-3.5-MoE: Llama with layer norms, biases of attention and head, and two of many experts by sparsemixer."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import every_layer, experts, llama_like, refuse, rope
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.mixtral import LINEARS, PLACE
from ipex_assist.models.names import ExpertNames, named
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "PhimoeForCausalLM"
EXAMPLES = ("microsoft/Phi-3.5-MoE-instruct", "microsoft/Phi-mini-MoE-instruct")
NAMES = {
    "norm_eps": "rms_norm_eps",
    "num_experts": "num_local_experts",
    "moe_intermediate_size": "intermediate_size",
    "jitter": "router_jitter_noise",
}
_NAMES = ExpertNames((f"{PLACE}.gate", "mlp.router"), LINEARS)


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention. A head that is the embedding has none."""
    bias, head_bias = config.flag("attention_bias", False), config.flag("lm_head_bias", False)
    if head_bias:
        refuse(config, tie_word_embeddings=False)
    return llama_like(
        "phimoe",
        config,
        num_key_value_heads=config.integer("num_key_value_heads", 8),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        ropes=(_rope(config),),
        qkv_bias=bias,
        output_bias=bias,
        head_bias=head_bias,
        sliding_windows=every_layer(config, config.optional_integer("sliding_window")),
        experts=experts(
            config, scores="sparsemixer", normalised=False, jitter=config.number("router_jitter_noise", 0.01)
        ),
    )


def _rope(config: Config) -> Rope:
    """Longrope, whose cos and sin are multiplied with one number for short texts and long ones."""
    found = rope(config, 1000000.0)
    if found.kind == "default":
        return found
    part = Config(config.part("rope_parameters") or config.part("rope_scaling"))
    short, long = part.number("short_mscale"), part.number("long_mscale")
    if found.kind != "longrope" or short != long:
        raise NotComputed(f"{found.kind} rope with short_mscale {short:g} and long_mscale {long:g} is not supported")
    return replace(found, scaling={**found.scaling, "attention_factor": short})


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Mixtral's names."""
    return named(spec, experts=_NAMES)
