"""MPT 7B and 30B: ALiBi in place of positions, and no bias anywhere."""

from __future__ import annotations

from ipex_assist.models.common import alibi_slopes, even_head_dim, llama_like, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import named, stacked_qkv
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "MptForCausalLM"
EXAMPLES = ("mosaicml/mpt-7b", "mosaicml/mpt-30b")
NAMES = {
    "hidden_size": "d_model",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "max_position_embeddings": "max_seq_len",
    "norm_eps": "layer_norm_epsilon",
}
_LINEARS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attn.Wqkv"),
    "o_proj": "attn.out_proj",
    "up_proj": "ffn.up_proj",
    "down_proj": "ffn.down_proj",
}
_OUTSIDE = {"embed_tokens": "transformer.wte", "final_norm": "transformer.norm_f", "lm_head": "lm_head"}
_ATTENTION = {"alibi": True, "clip_qkv": None, "qk_ln": False, "prefix_lm": False, "alibi_bias_max": 8}


def spec(config: Config) -> DecoderSpec:
    """What no MPT of transformers has is not computed: clipped values, norms of heads, biases, other widths."""
    attention = Config(config.part("attn_config"))
    refuse(attention, **_ATTENTION, attn_type="multihead_attention", attn_uses_sequence_id=False)
    refuse(config, no_bias=True, expansion_ratio=4, logit_scale=None)
    heads = config.integer("num_attention_heads")
    return llama_like(
        "mpt",
        config,
        intermediate_size=4 * config.integer("hidden_size"),
        num_key_value_heads=heads,
        head_dim=even_head_dim(config),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        norm_bias=False,
        activation="gelu",
        gated=False,
        ropes=(),
        alibi=alibi_slopes(heads),
        attention_scale=attention.optional_number("softmax_scale"),
        tied_head=config.flag("tie_word_embeddings", True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Query, key and value are one tensor."""
    return named(
        spec,
        prefix="transformer.",
        layers="transformer.blocks.",
        linears=_LINEARS,
        norms={"attention_norm": "norm_1", "mlp_norm": "norm_2"},
        outside=_OUTSIDE,
        fields=stacked_qkv(spec),
    )
