"""MiniCPM3: latent attention and a dense MLP, with multipliers of the embedding, the residual stream and logits."""

from __future__ import annotations

from ipex_assist.models.common import even_head_dim, number_or_none
from ipex_assist.models.config import Config
from ipex_assist.models.latent import latent_decoder, latent_weights
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "MiniCPM3ForCausalLM"
EXAMPLES = ("openbmb/MiniCPM3-4B",)
NAMES = {
    **{"norm_eps": "rms_norm_eps", "embedding_multiplier": "scale_emb", "residual_multiplier": "scale_depth"},
    "logit_multiplier": "dim_model_base",
}
_SIZES = {"kv_lora_rank": 256, "qk_rope_head_dim": 32, "qk_nope_head_dim": 64, "q_lora_rank": 768}


def spec(config: Config) -> DecoderSpec:
    """What a layer adds is multiplied with scale_depth / √layers, logits with dim_model_base / width; null is none."""
    depth = number_or_none(config, "residual_multiplier", 1.4)
    narrow = number_or_none(config, "logit_multiplier", 256.0)
    layers, hidden = config.integer("num_hidden_layers"), config.integer("hidden_size")
    return latent_decoder(
        "minicpm3",
        config,
        {**_SIZES, "v_head_dim": even_head_dim(config)},
        pairs=False,
        norm_eps=config.number("norm_eps", 1e-5),
        embedding_multiplier=config.number("embedding_multiplier", 12.0),
        residual_multiplier=1.0 if depth is None else depth / max(layers, 1) ** 0.5,
        logit_multiplier=1.0 if narrow is None else narrow / max(hidden, 1),
        mlp_bias=config.flag("mlp_bias", False),
        tied_head=config.flag("tie_word_embeddings", True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Those of latent attention; halves of a head are rotated, not pairs."""
    return latent_weights(spec, pairs=False)
