"""EXAONE 3.0 and 3.5: Llama by other names."""

from __future__ import annotations

from ipex_assist.models.common import by_either_name, llama_like, rope
from ipex_assist.models.config import Config
from ipex_assist.models.names import also_named, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "ExaoneForCausalLM"
EXAMPLES = ("LGAI-EXAONE/EXAONE-3.5-7.8B-Instruct", "LGAI-EXAONE/EXAONE-3.5-32B-Instruct")
NAMES = {
    **{"num_hidden_layers": "num_layers", "norm_eps": "layer_norm_epsilon", "hidden_act": "activation_function"},
}
_PUBLISHED = {
    **{"model.embed_tokens": "transformer.wte", "model.norm": "transformer.ln_f", "model.layers.": "transformer.h."},
    **{"self_attn.o_proj": "attn.attention.out_proj", "self_attn.": "attn.attention."},
    **{"input_layernorm": "ln_1", "post_attention_layernorm": "ln_2"},
    **{"mlp.gate_proj": "mlp.c_fc_0", "mlp.up_proj": "mlp.c_fc_1", "mlp.down_proj": "mlp.c_proj"},
}


def spec(config: Config) -> DecoderSpec:
    """Fields and tensors have their maker's names, or Llama's, whose class runs them in transformers."""
    config = by_either_name(
        config, num_hidden_layers="num_hidden_layers", norm_eps="rms_norm_eps", hidden_act="hidden_act"
    )
    bias = config.flag("attention_bias", False)
    return llama_like(
        "exaone",
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        ropes=(rope(config, 500000.0),),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Its maker's names, or Llama's."""
    return also_named(named(spec), _PUBLISHED)
