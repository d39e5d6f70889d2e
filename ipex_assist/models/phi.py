"""Phi-1, Phi-1.5 and Phi-2: attention and MLP side by side after one norm, biases everywhere, the head's, too."""

from __future__ import annotations

from ipex_assist.models.common import activation, even_head_dim, llama_like, refuse, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_OUTSIDE, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "PhiForCausalLM"
EXAMPLES = ("microsoft/phi-2", "microsoft/phi-1_5")
NAMES = {"norm_eps": "layer_norm_eps"}
_LINEARS = {"o_proj": "self_attn.dense", "up_proj": "mlp.fc1", "down_proj": "mlp.fc2"}


def spec(config: Config) -> DecoderSpec:
    """Norms of heads, and a head that is the embedding (it would have a bias), are not computed."""
    refuse(config, qk_layernorm=False, tie_word_embeddings=False)
    head_dim = config.optional_integer("head_dim") or even_head_dim(config)
    return llama_like(
        "phi",
        config,
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        parallel=True,
        shared_norm=True,
        activation=activation(config.text("hidden_act", "gelu_new")),
        gated=False,
        ropes=(rope(config, partial=True),),
        rotary_dim=rotary_part(config, head_dim, 0.5),
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        head_bias=True,
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for three linears and the final norm."""
    return named(
        spec,
        linears=LLAMA_LINEARS | _LINEARS,
        norms={"attention_norm": "input_layernorm"},
        outside=LLAMA_OUTSIDE | {"final_norm": "model.final_layernorm"},
    )
