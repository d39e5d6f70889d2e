"""Phi-3, Phi-3.5 and Phi-4: Llama with fused tensors, and longrope where the context is stretched."""

from __future__ import annotations

from ipex_assist.models.common import even_head_dim, layer_count, llama_like, rope, rotary_part
from ipex_assist.models.config import Config
from ipex_assist.models.names import LLAMA_LINEARS, merged, named, stacked_gate_up, stacked_qkv
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Phi3ForCausalLM"
EXAMPLES = ("microsoft/Phi-3.5-mini-instruct", "microsoft/phi-4", "microsoft/Phi-4-mini-instruct")
NAMES = {"norm_eps": "rms_norm_eps"}
_FUSED = dict.fromkeys(("q_proj", "k_proj", "v_proj"), "self_attn.qkv_proj") | dict.fromkeys(
    ("gate_proj", "up_proj"), "mlp.gate_up_proj"
)


def spec(config: Config) -> DecoderSpec:
    """A sliding window, where there is one, is every layer's; Phi-4-mini rotates three quarters of each head."""
    window = config.optional_integer("sliding_window")
    head_dim = config.optional_integer("head_dim") or even_head_dim(config)
    return llama_like(
        "phi3",
        config,
        norm_eps=config.number("norm_eps", 1e-5),
        ropes=(rope(config, partial=True),),
        rotary_dim=rotary_part(config, head_dim, 1.0),
        sliding_windows=() if window is None else (window,) * layer_count(config),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Query, key and value are one tensor, gate and up another."""
    return named(spec, linears=LLAMA_LINEARS | _FUSED, fields=merged(stacked_qkv(spec), stacked_gate_up(spec)))
