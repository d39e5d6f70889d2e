"""GPTBigCode: StarCoder, SantaCoder and tiny_starcoder_py; one key/value head for all queries (multi-query)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ipex_assist.models.common import activation
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GPTBigCodeForCausalLM"


def spec(config: Mapping[str, Any]) -> DecoderSpec:
    """Sizes go by GPT-2's names (n_embd, n_layer, n_head, n_inner, n_positions)."""
    hidden_size, heads = config["n_embd"], config["n_head"]
    return DecoderSpec(
        model_type="gpt_bigcode",
        vocab_size=config["vocab_size"],
        hidden_size=hidden_size,
        intermediate_size=config.get("n_inner") or 4 * hidden_size,
        num_hidden_layers=config["n_layer"],
        num_attention_heads=heads,
        num_key_value_heads=1 if config.get("multi_query", True) else heads,
        head_dim=hidden_size // heads,
        max_position_embeddings=config.get("n_positions", 1024),
        norm="layer",
        norm_eps=config.get("layer_norm_epsilon", 1e-5),
        activation=activation(config.get("activation_function", "gelu_pytorch_tanh")),
        gated=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        attention_scale=None if config.get("scale_attn_weights", True) else 1.0,
        tied_head=config.get("tie_word_embeddings", True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Query, key and value share one tensor: stacked with multi-query, else interleaved head by head."""
    query, kv = spec.query_size, spec.key_value_size
    if spec.num_key_value_heads == 1:
        parts = {
            name: {"rows": rows}
            for name, rows in (
                ("q_proj", (0, query)),
                ("k_proj", (query, query + kv)),
                ("v_proj", (query + kv, query + 2 * kv)),
            )
        }
    else:
        parts = {name: {"interleaved": (i, 3)} for i, name in enumerate(("q_proj", "k_proj", "v_proj"))}
    linears = {"o_proj": "attn.c_proj", "up_proj": "mlp.c_fc", "down_proj": "mlp.c_proj"}
    norms = {"attention_norm": "ln_1", "mlp_norm": "ln_2"}

    sources = {"embed_tokens.weight": _named("wte.weight"), "embed_positions.weight": _named("wpe.weight")}
    for part in (".weight", ".bias"):
        sources[f"final_norm{part}"] = _named(f"ln_f{part}")
        for layer in range(spec.num_hidden_layers):
            for name, fields in parts.items():
                sources[f"layers.{layer}.{name}{part}"] = _named(f"h.{layer}.attn.c_attn{part}", **fields)
            for name, theirs in (linears | norms).items():
                sources[f"layers.{layer}.{name}{part}"] = _named(f"h.{layer}.{theirs}{part}")
    if not spec.tied_head:
        sources["lm_head.weight"] = Source("lm_head.weight")
    return sources


def _named(name: str, **fields: Any) -> Source:
    return Source("transformer." + name, alternatives=(name,), **fields)
