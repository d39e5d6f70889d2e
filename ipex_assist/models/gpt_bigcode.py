"""GPTBigCode: StarCoder, SantaCoder and tiny_starcoder_py; one key/value head for all queries (multi-query)."""

from __future__ import annotations

from ipex_assist.models import gpt2
from ipex_assist.models.common import activation, even_head_dim
from ipex_assist.models.config import Config
from ipex_assist.models.layers import uniform_decoder
from ipex_assist.models.names import interleaved_qkv, named, stacked_qkv
from ipex_assist.models.spec import DecoderSpec
from ipex_assist.models.weights import Source

ARCHITECTURE = "GPTBigCodeForCausalLM"
EXAMPLES = ("bigcode/starcoder", "bigcode/tiny_starcoder_py")
NAMES = gpt2.NAMES


def spec(config: Config) -> DecoderSpec:
    """Sizes go by GPT-2's names (n_embd, n_layer, n_head, n_inner, n_positions)."""
    hidden_size, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    return uniform_decoder(
        model_type="gpt_bigcode",
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size", 4 * hidden_size),
        num_hidden_layers=config.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=1 if config.flag("multi_query", True) else heads,
        head_dim=even_head_dim(config),
        max_position_embeddings=config.integer("max_position_embeddings", 1024),
        norm="layer",
        norm_eps=config.number("norm_eps", 1e-5),
        activation=activation(config.text("activation", "gelu_pytorch_tanh")),
        gated=False,
        learned_positions=True,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        attention_scale=None if config.flag("scale_attn_weights", True) else 1.0,
        tied_head=config.flag("tie_word_embeddings", True),
    )


def weights(spec: DecoderSpec) -> dict[str, Source]:
    """Query, key and value share one tensor: stacked with multi-query, else interleaved head by head."""
    return named(
        spec,
        prefix="transformer.",
        layers="transformer.h.",
        linears=gpt2.LINEARS,
        norms={"attention_norm": "ln_1", "mlp_norm": "ln_2"},
        outside=gpt2.OUTSIDE,
        fields=stacked_qkv(spec) if spec.layers[0].attention.kv_heads == 1 else interleaved_qkv(),
    )
