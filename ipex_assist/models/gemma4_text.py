"""Gemma 4, the text part: two kinds of attention, keys and values that later layers share, embeddings of each layer."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import FULL, SLIDING, activation, layer_kinds, llama_like, number_or_none, windows
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.gemma2 import NORM_NAMES
from ipex_assist.models.gemma4_layers import gemma4_layers, rope_of
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_OUTSIDE, MLP, ExpertNames, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Gemma4ForCausalLM"
EXAMPLES = ("google/gemma-4-E4B-it",)
NAMES = {
    "norm_eps": "rms_norm_eps",
    "kv_layer": "num_kv_shared_layers",
    "per_layer_size": "hidden_size_per_layer_input",
}
PER_LAYER_LINEARS = {"per_layer_gate_proj": "per_layer_input_gate", "per_layer_out_proj": "per_layer_projection"}
_NORMS = {
    "per_layer_out_norm": "post_per_layer_input_norm",
    "layer_scalar": "layer_scalar",
    "router_norm": "router.scale",
    "expert_scales": "router.per_expert_scale",
    "experts_norm": "pre_feedforward_layernorm_2",
    "experts_out_norm": "post_feedforward_layernorm_2",
    "shared_out_norm": "post_feedforward_layernorm_1",
}
PER_LAYER_NAMES = {
    "per_layer_embed": "model.embed_tokens_per_layer",
    "per_layer_in_proj": "model.per_layer_model_projection",
    "per_layer_norm": "model.per_layer_projection_norm",
}
_EXPERTS = ExpertNames(
    ("router.proj",),
    {leaf: f"experts.{{}}.{leaf}" for leaf in MLP},
    {leaf: f"mlp.{leaf}" for leaf in MLP},
    together="experts",
)


def spec(config: Config) -> DecoderSpec:
    """The last layer sees everything, whatever `layer_types` says. Attention that also looks ahead is of images."""
    if config.values.get("use_bidirectional_attention") not in (None, "vision"):
        raise NotComputed("use_bidirectional_attention is supported for images ('vision') or not at all (null)")
    vocabulary = config.integer("vocab_size")
    if config.integer("vocab_size_per_layer_input", 262144) < vocabulary and _per_layer_size(config):
        raise NotComputed(f"a vocab_size_per_layer_input below the vocabulary's {vocabulary:,} tokens is not supported")
    kinds = [*layer_kinds(config, lambda layer: (layer + 1) % 6 != 0)[:-1], FULL]
    bias = config.flag("attention_bias", False)
    made = llama_like(
        "gemma4_text",
        config,
        head_dim=config.integer("head_dim", 256),
        activation=activation(config.text("hidden_activation", "gelu_pytorch_tanh")),
        **{"norm_place": "sandwich", "qk_norm": "head", "attention_scale": 1.0, "qkv_bias": bias, "output_bias": bias},
        ropes=tuple(rope_of(config, kind) for kind in (FULL, SLIDING)),
        layer_ropes=tuple(int(kind == SLIDING) for kind in kinds),
        sliding_windows=windows(config, kinds, 512),
        embedding_multiplier=config.integer("hidden_size") ** 0.5,
        logit_cap=number_or_none(config, "final_logit_softcapping", None),
        tied_head=config.flag("tie_word_embeddings", True),
        per_layer_size=_per_layer_size(config),
    )
    return replace(made, layers=gemma4_layers(config, kinds, made.layers))


def _per_layer_size(config: Config) -> int:
    return config.integer("hidden_size_per_layer_input", 256)


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """The MLP beside experts is their shared one. The table of per-layer embeddings may have more rows than tokens."""
    return named(
        spec,
        linears={**LLAMA_LINEARS, **PER_LAYER_LINEARS},
        norms={**NORM_NAMES, **_NORMS},
        outside={**LLAMA_OUTSIDE, **PER_LAYER_NAMES},
        fields={
            "router_norm": {"factor": spec.hidden_size**-0.5},
            "per_layer_embed": {"rows": (0, spec.vocab_size)},
        },
        experts=_EXPERTS,
    )
