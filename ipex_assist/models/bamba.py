"""Bamba: Llama with Mamba-2 in most layers, and positions in half of each head of the others' attention."""

from __future__ import annotations

from ipex_assist.models.common import FULL, even_head_dim, layer_count, llama_like, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.gated_delta import LINEAR
from ipex_assist.models.layers import with_mixers
from ipex_assist.models.mamba_layers import BAMBA_NAMES, bamba_mixer, kv_heads, mamba_fields, mamba_names
from ipex_assist.models.names import LLAMA_LINEARS, LLAMA_OUTSIDE, named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "BambaForCausalLM"
EXAMPLES = ("ibm-ai-platform/Bamba-9B-v2", "ibm-ai-platform/Bamba-9B-v1")
NAMES = {"norm_eps": "rms_norm_eps", **BAMBA_NAMES}
_NORMS = {"attention_norm": "input_layernorm", "mlp_norm": "pre_ff_layernorm"}
_MLP = {leaf: f"feed_forward.{leaf}" for leaf in ("gate_proj", "up_proj", "down_proj")}


def spec(config: Config) -> DecoderSpec:
    """`attn_layer_indices` are the layers with attention."""
    attention, bias = config.integers("attn_layer_indices"), config.flag("attention_bias", False)
    kinds = [FULL if layer in attention else LINEAR for layer in range(layer_count(config))]
    head_dim = config.optional_integer("head_dim") or even_head_dim(config)
    alike = llama_like(
        "bamba",
        config,
        head_dim=head_dim,
        norm_eps=config.number("norm_eps", 1e-5),
        num_key_value_heads=kv_heads(config),
        ropes=(rope(config, partial=True),),
        rotary_dim=rotary_part(config, head_dim, 0.5),
        qkv_bias=bias,
        output_bias=bias,
        mlp_bias=config.flag("mlp_bias", False),
    )
    mixer = bamba_mixer(config) if LINEAR in kinds else None
    return with_mixers(alike, [mixer if kind == LINEAR else None for kind in kinds])


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Llama's names of attention."""
    return named(
        spec,
        linears={**LLAMA_LINEARS, **_MLP},
        norms=_NORMS,
        outside={**LLAMA_OUTSIDE, "final_norm": "model.final_layernorm"},
        fields=mamba_fields(spec.recurrents[0] if spec.recurrents else None),
        recurrent=mamba_names("mamba"),
    )
