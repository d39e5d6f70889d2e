"""DecoderSpec: everything an executor must know about a decoder-only transformer, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Norm = Literal["rms", "layer"]
Activation = Literal["silu", "relu", "gelu", "gelu_tanh"]

# Hugging Face's names of activations (transformers.activations.ACT2FN) and the four functions behind them.
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the base and, where a model stretches its context, the rule it uses.

    `scaling` holds the numbers of the rule under Hugging Face's names (`factor`, `low_freq_factor`, …).
    """

    theta: float = 10000.0
    kind: Literal["default", "linear", "dynamic", "yarn", "llama3"] = "default"
    scaling: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DecoderSpec:
    """One decoder-only transformer. Sizes are counts of elements; names are Hugging Face's.

    The layer is `x + attention(norm(x))`, then `x + mlp(norm(x))`; with `post_norm` the norm follows the sum.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    norm: Norm = "rms"
    norm_eps: float = 1e-6
    post_norm: bool = False
    norm_affine: bool = True
    final_norm: bool = True
    activation: Activation = "silu"
    gated: bool = True
    # Exactly one of the two: rotary positions, or a learned table read at position + offset.
    rope: Rope | None = None
    position_offset: int = 0
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_scale: float | None = None  # head_dim ** -0.5 where None
    tied_head: bool = False
    embedding_size: int | None = None  # where the token embedding is narrower or wider than hidden_size (OPT-350m)
    sliding_windows: tuple[int | None, ...] = ()  # one a layer; empty where every layer sees everything

    @property
    def scale(self) -> float:
        """What query · key is multiplied with."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def projected_embedding(self) -> bool:
        """Whether the embedding passes through project_in and project_out (OPT-350m)."""
        return self.embedding_size not in (None, self.hidden_size)

    @property
    def query_size(self) -> int:
        """Columns of the query projection."""
        return self.num_attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.num_key_value_heads * self.head_dim

    def window(self, layer: int) -> int | None:
        """How many of the latest positions `layer` may see; None is all of them."""
        return self.sliding_windows[layer] if self.sliding_windows else None

    @property
    def context_length(self) -> int:
        """Tokens a sequence can hold: dynamic and yarn positions reach beyond the length the model was trained at."""
        if self.rope is None or self.rope.kind not in ("dynamic", "yarn"):
            return self.max_position_embeddings
        trained = self.rope.scaling.get("original_max_position_embeddings") or self.max_position_embeddings
        return max(self.max_position_embeddings, int(trained * self.rope.scaling.get("factor", 1.0)))

    def kv_bytes_per_token(self, element_size: int) -> int:
        """Bytes of keys and values that one token adds to the cache."""
        return 2 * self.num_hidden_layers * self.key_value_size * element_size
