"""GPT-NeoX: Pythia, GPT-NeoX-20B, Dolly, RedPajama; attention and MLP side by side, a quarter of a head is rotated."""

from __future__ import annotations

from dataclasses import replace

from ipex_assist.models.common import activation, even_head_dim, llama_like, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import interleaved_qkv, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GPTNeoXForCausalLM"
EXAMPLES = ("EleutherAI/pythia-6.9b", "EleutherAI/gpt-neox-20b")
NAMES = {"norm_eps": "layer_norm_eps", "rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
_LINEARS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "attention.query_key_value"),
    "o_proj": "attention.dense",
    "up_proj": "mlp.dense_h_to_4h",
    "down_proj": "mlp.dense_4h_to_h",
}
_OUTSIDE = {"embed_tokens": "gpt_neox.embed_in", "final_norm": "gpt_neox.final_layer_norm", "lm_head": "embed_out"}


def spec(config: Config) -> DecoderSpec:
    """Files of transformers 4 say rotary_pct and rotary_emb_base."""
    bias, heads = config.flag("attention_bias", True), config.integer("num_attention_heads")
    return llama_like(
        "gpt_neox",
        config,
        num_key_value_heads=heads,
        head_dim=even_head_dim(config),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        parallel=config.flag("use_parallel_residual", True),
        activation=activation(config.text("hidden_act", "gelu")),
        gated=False,
        ropes=(rope(config, partial=True),),
        rotary_dim=rotary_part(config, even_head_dim(config), 0.25),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=True,
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Query, key and value lie head by head in one tensor; transformers 5 calls the head lm_head."""
    sources = named(
        spec,
        prefix="gpt_neox.",
        layers="gpt_neox.layers.",
        linears=_LINEARS,
        outside=_OUTSIDE,
        fields=interleaved_qkv(),
    )
    if "lm_head.weight" in sources:
        sources["lm_head.weight"] = replace(sources["lm_head.weight"], alternatives=("lm_head.weight",))
    return sources
