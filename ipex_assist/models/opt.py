"""OPT, 125m to 66b; 350m has its norms after the sums and a narrower, projected embedding."""

from __future__ import annotations

from ipex_assist.models.common import activation, even_head_dim
from ipex_assist.models.config import Config
from ipex_assist.models.layers import uniform_decoder
from ipex_assist.models.names import LLAMA_LINEARS, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "OPTForCausalLM"
EXAMPLES = ("facebook/opt-13b", "facebook/opt-350m")
NAMES = {"intermediate_size": "ffn_dim", "embedding_size": "word_embed_proj_dim", "activation": "activation_function"}


def spec(config: Config) -> DecoderSpec:
    """Positions are learned and stored from row 2 on; the final norm exists where the norms come first."""
    hidden_size, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    norm_first = config.flag("do_layer_norm_before", True)
    bias = config.flag("enable_bias", True)
    return uniform_decoder(
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
        norm_place="pre" if norm_first else "post_residual",
        norm_affine=config.flag("layer_norm_elementwise_affine", True),
        final_norm=norm_first and not config.flag("_remove_final_layer_norm", False),
        activation=activation(config.text("activation", "relu")),
        gated=False,
        learned_positions=True,
        position_offset=2,
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=bias,
        tied_head=config.flag("tie_word_embeddings", True),
        embedding_size=config.integer("embedding_size", hidden_size),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Checkpoint names; facebook's own files leave out the outer "model."."""
    names = {name: f"model.decoder.{name}" for name in ("embed_tokens", "embed_positions")}
    if spec.projected_embedding:
        names |= {name: f"model.decoder.{name}" for name in ("project_in", "project_out")}
    return named(
        spec,
        layers="model.decoder.layers.",
        linears=LLAMA_LINEARS | {"o_proj": "self_attn.out_proj", "up_proj": "fc1", "down_proj": "fc2"},
        norms={"attention_norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm"},
        outside=names | {"final_norm": "model.decoder.final_layer_norm", "lm_head": "lm_head"},
    )
