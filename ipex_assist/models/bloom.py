"""BLOOM and BLOOMZ: ALiBi in place of positions, and a norm of the embedding."""

from __future__ import annotations

from ipex_assist.models.common import alibi_slopes, by_either_name, even_head_dim, llama_like, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import interleaved_qkv, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "BloomForCausalLM"
EXAMPLES = ("bigscience/bloom-7b1", "bigscience/bloomz-560m")
NAMES = {
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "seq_length",
    "norm_eps": "layer_norm_epsilon",
}
_LINEARS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "self_attention.query_key_value"),
    "o_proj": "self_attention.dense",
    "up_proj": "mlp.dense_h_to_4h",
    "down_proj": "mlp.dense_4h_to_h",
}
_OUTSIDE = {
    "embed_tokens": "transformer.word_embeddings",
    "embed_norm": "transformer.word_embeddings_layernorm",
    "final_norm": "transformer.ln_f",
    "lm_head": "lm_head",
}


def spec(config: Config) -> DecoderSpec:
    """The first files say n_embed, and num_attention_heads for n_head."""
    refuse(config, apply_residual_connection_post_layernorm=False)
    config = by_either_name(config, hidden_size="n_embed", num_attention_heads="num_attention_heads")
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    return llama_like(
        "bloom",
        config,
        intermediate_size=4 * hidden,
        num_key_value_heads=heads,
        head_dim=even_head_dim(config),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        embedding_norm=True,
        activation="gelu_tanh",
        gated=False,
        ropes=(),
        alibi=alibi_slopes(heads),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Query, key and value lie head by head in one tensor; the published files leave out "transformer."."""
    return named(
        spec,
        prefix="transformer.",
        layers="transformer.h.",
        linears=_LINEARS,
        outside=_OUTSIDE,
        fields=interleaved_qkv(),
    )
