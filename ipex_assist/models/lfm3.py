"""LFM3: LFM2 with norms after its parts, too, windows in some layers of attention, and a gate of each head."""

from __future__ import annotations

from ipex_assist.models import lfm2
from ipex_assist.models.common import FULL, SLIDING, layer_count, refuse, rope, windows
from ipex_assist.models.config import Config
from ipex_assist.models.names import HEAD_NORMS, LLAMA_LINEARS, also_named
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "Lfm3ForCausalLM"
EXAMPLES = ("LiquidAI/LFM3-1.7B",)
NAMES = lfm2.NAMES
_ATTENTION = {leaf: name for leaf, name in LLAMA_LINEARS.items() if name.startswith("self_attn.")}
_NORMS = {"attention_out_norm": "post_operator_norm", "mlp_out_norm": "post_ffn_norm", **HEAD_NORMS}
_ROPES = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.5},
}


def spec(config: Config) -> DecoderSpec:
    """Layers with a window have positions of their own, and layers without one turn a part of each head."""
    gated = config.flag("use_attention_gate", True)
    refuse(config, **({"attention_bias": False} if gated else {}))
    usual = [FULL if i % 4 == 2 else SLIDING if i % 4 == 0 and i > 0 else lfm2.CONV for i in range(layer_count(config))]
    kinds = config.optional_texts("layer_types") or usual
    if not config.part("rope_parameters"):
        config = Config({**config.values, "rope_parameters": _ROPES}, config.other_names)
    bias = config.flag("attention_bias", False)
    return lfm2.convolved(
        "lfm3",
        config,
        kinds,
        kernel=7,
        head_dim=config.integer("head_dim", 128),
        norm_place="sandwich" if config.flag("use_sandwich_norm", True) else "pre",
        output_gate=gated,
        gate_per_head=gated,
        qkv_bias=bias,
        output_bias=bias,
        ropes=tuple(rope(config, kind=kind) for kind in (FULL, SLIDING)),
        layer_ropes=tuple(int(kind == SLIDING) for kind in kinds),
        sliding_windows=windows(config, kinds, 256),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """LFM2's names but for attention; gates have two."""
    sources = lfm2.weights(spec, linears={**_ATTENTION, "g_proj": "self_attn.g_proj"}, norms=_NORMS)
    return also_named(sources, {"self_attn.g_proj": "self_attn.gate_proj"})
