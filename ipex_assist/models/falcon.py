"""Falcon 7B, 40B, 180B and Falcon 2: one norm or two before attention and MLP, which are side by side."""

from __future__ import annotations

from ipex_assist.models.common import activation, even_head_dim, llama_like, refuse
from ipex_assist.models.config import Config, NotComputed
from ipex_assist.models.names import interleaved_qkv, named, stacked_qkv
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "FalconForCausalLM"
EXAMPLES = ("tiiuae/falcon-7b", "tiiuae/falcon-40b", "tiiuae/falcon-11B")
NAMES = {
    "num_key_value_heads": "num_kv_heads",
    "intermediate_size": "ffn_hidden_size",
    "norm_eps": "layer_norm_epsilon",
}
_LINEARS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "self_attention.query_key_value"),
    "o_proj": "self_attention.dense",
    "up_proj": "mlp.dense_h_to_4h",
    "down_proj": "mlp.dense_4h_to_h",
}
_OUTSIDE = {"embed_tokens": "transformer.word_embeddings", "final_norm": "transformer.ln_f", "lm_head": "lm_head"}


def spec(config: Config) -> DecoderSpec:
    """ALiBi (Falcon RW, rounded to bf16 there) is not computed, nor norms that no published model has."""
    refuse(config, alibi=False)
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    new, parallel = config.flag("new_decoder_architecture", False), config.flag("parallel_attn", True)
    norms = config.integer("num_ln_in_parallel_attn", 2 if new else 1)
    if (new and not parallel) or norms not in ((1, 2) if new else (1,)):
        raise NotComputed(f"{norms} norms before attention with parallel_attn {parallel} are not supported")
    kv_heads = config.integer("num_key_value_heads", heads) if new else heads
    bias = config.flag("bias", False)
    return llama_like(
        "falcon",
        config,
        intermediate_size=config.integer("intermediate_size", 4 * hidden),
        num_key_value_heads=1 if not new and config.flag("multi_query", True) else kv_heads,
        head_dim=even_head_dim(config),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        parallel=parallel,
        shared_norm=parallel and norms == 1,
        activation=activation(config.text("activation", "gelu")),
        gated=False,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """One tensor holds the queries of each key/value head, its key, and its value."""
    layer = spec.layers[0]
    norms = {"attention_norm": "input_layernorm"}
    if not layer.shared_norm:
        norms = {"attention_norm": "ln_attn", "mlp_norm": "ln_mlp"} if layer.parallel else norms
        norms.setdefault("mlp_norm", "post_attention_layernorm")
    return named(
        spec,
        prefix="transformer.",
        layers="transformer.h.",
        linears=_LINEARS,
        norms=norms,
        outside=_OUTSIDE,
        fields=stacked_qkv(spec) if layer.attention.kv_heads == 1 else interleaved_qkv(layer.attention.group),
    )
