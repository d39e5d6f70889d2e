"""GPT-J 6B: attention and MLP side by side after one norm; rotates pairs of the first rotary_dim values."""

from __future__ import annotations

from ipex_assist.models import gpt2
from ipex_assist.models.common import activation, even_head_dim, llama_like, refuse
from ipex_assist.models.config import Config
from ipex_assist.models.names import named, rotated_by_pairs
from ipex_assist.models.rope_spec import Rope
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GPTJForCausalLM"
EXAMPLES = ("EleutherAI/gpt-j-6b",)
NAMES = gpt2.NAMES
_LINEARS = {
    "q_proj": "attn.q_proj",
    "k_proj": "attn.k_proj",
    "v_proj": "attn.v_proj",
    "o_proj": "attn.out_proj",
    "up_proj": "mlp.fc_in",
    "down_proj": "mlp.fc_out",
}
_OUTSIDE = {"embed_tokens": "transformer.wte", "final_norm": "transformer.ln_f", "lm_head": "lm_head"}


def spec(config: Config) -> DecoderSpec:
    """The head has a bias, so that it cannot be the embedding."""
    refuse(config, tie_word_embeddings=False)
    return llama_like(
        "gptj",
        config,
        intermediate_size=config.integer("intermediate_size", 4 * config.integer("hidden_size")),
        num_key_value_heads=config.integer("num_attention_heads"),
        head_dim=even_head_dim(config),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        parallel=True,
        shared_norm=True,
        activation=activation(config.text("activation", "gelu_new")),
        gated=False,
        ropes=(Rope(),),
        rotary_dim=config.integer("rotary_dim"),
        mlp_bias=True,
        head_bias=True,
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Query and key in the order that is rotated by halves."""
    return named(
        spec,
        prefix="transformer.",
        layers="transformer.h.",
        linears=_LINEARS,
        norms={"attention_norm": "ln_1"},
        outside=_OUTSIDE,
        fields=rotated_by_pairs(spec),
    )
