"""GPT-2 and DistilGPT-2: learned positions, and linears stored (in, out)."""

from __future__ import annotations

from ipex_assist.models.common import activation, even_head_dim, llama_like, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import merged, named, stacked_qkv
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GPT2LMHeadModel"
EXAMPLES = ("openai-community/gpt2-xl", "distilbert/distilgpt2")
NAMES = {
    "hidden_size": "n_embd",
    "intermediate_size": "n_inner",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "norm_eps": "layer_norm_epsilon",
    "activation": "activation_function",
}
LINEARS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attn.c_attn"),
    "o_proj": "attn.c_proj",
    "up_proj": "mlp.c_fc",
    "down_proj": "mlp.c_proj",
}
OUTSIDE = {
    "embed_tokens": "transformer.wte",
    "embed_positions": "transformer.wpe",
    "final_norm": "transformer.ln_f",
    "lm_head": "lm_head",
}


def spec(config: Config) -> DecoderSpec:
    """Attention that is scaled by the number of the layer is not computed."""
    refuse(config, scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    return llama_like(
        "gpt2",
        config,
        intermediate_size=config.integer("intermediate_size", 4 * config.integer("hidden_size")),
        num_key_value_heads=config.integer("num_attention_heads"),
        head_dim=even_head_dim(config),
        max_position_embeddings=config.integer("max_position_embeddings", 1024),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        activation=activation(config.text("activation", "gelu_new")),
        gated=False,
        ropes=(),
        learned_positions=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        attention_scale=None if config.flag("scale_attn_weights", True) else 1.0,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Query, key and value are one tensor; the published files leave out "transformer."."""
    return named(
        spec,
        prefix="transformer.",
        layers="transformer.h.",
        linears=LINEARS,
        norms={"attention_norm": "ln_1", "mlp_norm": "ln_2"},
        outside=OUTSIDE,
        fields=merged(stacked_qkv(spec), {leaf: {"transposed": True} for leaf in LINEARS}),
    )
