"""Apertus: Llama with a norm of each head of query and key, and a plain MLP, of xIELU."""

from __future__ import annotations

from ipex_assist.models.common import activation, llama_like, rope
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_LINEARS, XIELU, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "ApertusForCausalLM"
EXAMPLES = ("swiss-ai/Apertus-8B-Instruct-2509", "swiss-ai/Apertus-70B-Instruct-2509")
NAMES = {"norm_eps": "rms_norm_eps"}
_NORMS = {"attention_norm": "attention_layernorm", "mlp_norm": "feedforward_layernorm", **HEAD_NORMS}
_XIELU = dict(zip(XIELU, ("alpha_p", "alpha_n", "beta", "eps"), strict=True))
_ROPE = {
    **{"rope_type": "llama3", "rope_theta": 12000000.0, "factor": 8.0, "original_max_position_embeddings": 8192},
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0},
}


def spec(config: Config) -> DecoderSpec:
    """`attention_bias` puts a bias on all four projections of attention."""
    bias, kind = config.flag("attention_bias", False), config.text("hidden_act", "xielu")
    given = config.part("rope_parameters") or config.part("rope_scaling")
    return llama_like(
        "apertus",
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        activation="xielu" if kind == "xielu" else activation(kind),
        gated=False,
        qk_norm="head",
        qkv_bias=bias,
        output_bias=bias,
        ropes=(rope(config if given else Config({**config.values, "rope_parameters": _ROPE}), 12000000.0),),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names but for the norms. The numbers of xIELU are vectors of one element, or no vectors."""
    own = {leaf: f"mlp.act_fn.{name}" for leaf, name in _XIELU.items()}
    learned = spec.layers[0].each_mlp.activation == "xielu"
    return named(
        spec,
        linears={**LLAMA_LINEARS, **own} if learned else LLAMA_LINEARS,
        norms=_NORMS,
        fields={leaf: {"flat": True} for leaf in XIELU},
    )
