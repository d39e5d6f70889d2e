"""OPT, 125m to 66b; 350m has its norms after the sums and a narrower, projected embedding."""

from __future__ import annotations

from ipex_assist.models.common import activation, even_head_dim
from ipex_assist.models.config import Config
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "OPTForCausalLM"
NAMES = {"intermediate_size": "ffn_dim", "embedding_size": "word_embed_proj_dim", "activation": "activation_function"}


def spec(config: Config) -> DecoderSpec:
    """Positions are learned and stored from row 2 on; the final norm exists where the norms come first."""
    hidden_size, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    norm_first = config.flag("do_layer_norm_before", True)
    bias = config.flag("enable_bias", True)
    return DecoderSpec(
        model_type="opt",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=config.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=even_head_dim(config),
        max_position_embeddings=config.integer("max_position_embeddings", 2048),
        norm="layer",
        norm_eps=1e-5,
        post_norm=not norm_first,
        norm_affine=config.flag("layer_norm_elementwise_affine", True),
        final_norm=norm_first and not config.flag("_remove_final_layer_norm", False),
        activation=activation(config.text("activation", "relu")),
        gated=False,
        position_offset=2,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tied_head=config.flag("tie_word_embeddings", True),
        embedding_size=config.integer("embedding_size", hidden_size),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Checkpoint names; facebook's own files leave out the outer "model."."""
    norm_parts = (".weight", ".bias") if spec.norm_affine else ()
    names = {
        "embed_tokens.weight": "model.decoder.embed_tokens.weight",
        "embed_positions.weight": "model.decoder.embed_positions.weight",
    }
    if spec.final_norm:
        names |= {f"final_norm{part}": f"model.decoder.final_layer_norm{part}" for part in norm_parts}
    if spec.projected_embedding:
        names |= {f"{name}.weight": f"model.decoder.{name}.weight" for name in ("project_in", "project_out")}
    if not spec.tied_head:
        names["lm_head.weight"] = "lm_head.weight"
    linears = {
        "q_proj": ("self_attn.q_proj", spec.qkv_bias),
        "k_proj": ("self_attn.k_proj", spec.qkv_bias),
        "v_proj": ("self_attn.v_proj", spec.qkv_bias),
        "o_proj": ("self_attn.out_proj", spec.output_bias),
        "up_proj": ("fc1", spec.mlp_bias),
        "down_proj": ("fc2", spec.mlp_bias),
    }
    for layer in range(spec.num_hidden_layers):
        ours, theirs = f"layers.{layer}.", f"model.decoder.layers.{layer}."
        for part in norm_parts:
            names[f"{ours}attention_norm{part}"] = f"{theirs}self_attn_layer_norm{part}"
            names[f"{ours}mlp_norm{part}"] = f"{theirs}final_layer_norm{part}"
        for name, (theirs_name, bias) in linears.items():
            names[f"{ours}{name}.weight"] = f"{theirs}{theirs_name}.weight"
            if bias:
                names[f"{ours}{name}.bias"] = f"{theirs}{theirs_name}.bias"
    return {ours: Source(name, alternatives=(name.removeprefix("model."),)) for ours, name in names.items()}
