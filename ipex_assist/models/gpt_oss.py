"""gpt-oss: experts with a clamped activation, windows in every second layer, and a sink for each query head."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import experts, layer_kinds, llama_like, refuse, rope, windows
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.mlp_spec import CLAMP, SIGMOID_GAIN
from ipex_assist.models.names import ExpertNames, Fields, named, sinks
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GptOssForCausalLM"
EXAMPLES = ("openai/gpt-oss-20b", "openai/gpt-oss-120b")
NAMES = {
    "norm_eps": "rms_norm_eps",
    "num_experts": "num_local_experts",
    "moe_intermediate_size": "intermediate_size",
}
_BOTH, _DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
_NAMES = ExpertNames(("mlp.router",), {"gate_proj": _BOTH, "up_proj": _BOTH, "down_proj": _DOWN})
# Experts' matrices are stored (in, out), gate and up alternating. (In MXFP4 they are shown so: checkpoints/mxfp4.py.)
_FIELDS: Fields = {
    "gate_proj": {"transposed": True, "every": (0, 2)},
    "up_proj": {"transposed": True, "every": (1, 2)},
    "down_proj": {"transposed": True},
}


def spec(config: Config) -> DecoderSpec:
    """The softmax is over the chosen experts. A config that says nothing of its positions is refused: releases of
    transformers differ by what that means."""
    refuse(config, hidden_act="silu", swiglu_limit=CLAMP, swiglu_alpha=SIGMOID_GAIN)
    if not (config.part("rope_parameters") or config.part("rope_scaling")):
        raise NotComputed("gpt_oss without rope_scaling (or rope_parameters) is not supported")
    bias = config.flag("attention_bias", True)
    kinds = layer_kinds(config, lambda layer: layer % 2 == 0)
    return llama_like(
        "gpt_oss",
        config,
        head_dim=config.integer("head_dim", 64),
        norm_eps=config.number("norm_eps", 1e-5),
        qkv_bias=bias,
        output_bias=bias,
        attention_sinks=True,
        ropes=(rope(config, 150000.0),),
        sliding_windows=windows(config, kinds, 128),
        experts=experts(config, activation="clamped_swiglu", bias=True, normalised=True, router_bias=True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for the experts and the sinks, which are no modules: "…gate_up_proj", "…gate_up_proj_bias"."""
    sources = named(spec, fields=_FIELDS, experts=_NAMES)
    for ours, source in sources.items():
        if source.expert is not None:
            name = source.name.removesuffix(".weight").replace(".bias", "_bias")
            apart = replace(source, name=f"model.{ours.replace('.experts.', '.mlp.experts.')}", expert=None)  # GGUF
            apart = replace(apart, transposed=False, every=None, alternatives=(), otherwise=None)
            sources[ours] = replace(source, name=name, alternatives=(name.removeprefix("model."),), otherwise=apart)
    return sources | sinks(spec)
