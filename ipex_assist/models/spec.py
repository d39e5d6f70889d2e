"""DecoderSpec: everything an executor must know about a decoder-only transformer, as plain data."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ipex_assist.models.config import ConfigError

Norm = Literal["rms", "layer"]
Activation = Literal["silu", "relu", "gelu", "gelu_tanh"]
RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3"]

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


# The least and the largest that each number may be. The upper ends are far beyond any model: a damaged config shall not
# ask for all memory.
RANGES: dict[str, tuple[float, float]] = {
    "vocab_size": (1, 1 << 24),
    "hidden_size": (1, 1 << 20),
    "intermediate_size": (1, 1 << 22),
    "num_hidden_layers": (1, 1000),
    "num_attention_heads": (1, 4096),
    "num_key_value_heads": (1, 4096),
    "head_dim": (1, 4096),
    "max_position_embeddings": (1, 1 << 30),
    "norm_eps": (1e-30, 0.1),
    "position_offset": (0, 1 << 10),
    "attention_scale": (1e-6, 1e6),
    "embedding_size": (1, 1 << 20),
}
# The same for rotary positions, and what each rule cannot do without.
ROPE_RANGES: dict[str, tuple[float, float]] = {
    "rope_theta": (1.001, 1e15),
    "factor": (1e-3, 1e6),
    "low_freq_factor": (1e-3, 1e6),
    "high_freq_factor": (1e-3, 1e6),
    "original_max_position_embeddings": (1, 1 << 30),
    "beta_fast": (1e-3, 1e6),
    "beta_slow": (1e-3, 1e6),
    "attention_factor": (1e-3, 1e3),
    "mscale": (0, 1e3),
    "mscale_all_dim": (0, 1e3),
}
ROPE_NEEDS: dict[RopeKind, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclass(frozen=True)
class Rope:
    """Rotary positions: the base and, where a model stretches its context, the rule it uses.

    `scaling` holds the numbers of the rule under Hugging Face's names (`factor`, `low_freq_factor`, …).
    Raises ConfigError for a number out of ROPE_RANGES, and where the rule lacks one.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    scaling: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_range("rope_theta", self.theta, ROPE_RANGES["rope_theta"])
        for name in ROPE_NEEDS[self.kind]:
            if self.scaling.get(name) is None:
                raise ConfigError(name, None, f"a number: {self.kind} rope scaling needs it")
        for name, value in self.scaling.items():
            if name in ROPE_RANGES and value is not None:
                _check_range(name, value, ROPE_RANGES[name])
        if self.kind == "llama3" and self.scaling["high_freq_factor"] <= self.scaling["low_freq_factor"]:
            low, high = self.scaling["low_freq_factor"], self.scaling["high_freq_factor"]
            raise ConfigError("high_freq_factor", high, f"larger than low_freq_factor, {low:g}")


@dataclass(frozen=True)
class DecoderSpec:
    """One decoder-only transformer. Sizes are counts of elements; names are Hugging Face's.

    The layer is `x + attention(norm(x))`, then `x + mlp(norm(x))`; with `post_norm` the norm follows the sum.
    Raises ConfigError for a value out of RANGES, and for values that cannot go together.
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

    def __post_init__(self) -> None:
        for name, ends in RANGES.items():
            if (value := getattr(self, name)) is not None:
                _check_range(name, value, ends)
        for name, kinds in (("norm", Norm), ("activation", Activation)):
            if getattr(self, name) not in get_args(kinds):
                raise ConfigError(name, getattr(self, name), f"one of {', '.join(get_args(kinds))}")
        heads = self.num_attention_heads
        if heads % self.num_key_value_heads:
            raise ConfigError("num_key_value_heads", self.num_key_value_heads, f"a divisor of the {heads} heads")
        if self.rope is not None and self.head_dim % 2:
            raise ConfigError("head_dim", self.head_dim, "even, because rotary positions turn its halves")
        if self.rope is not None and self.rope.kind == "dynamic" and self.head_dim < 4:
            raise ConfigError("head_dim", self.head_dim, "at least 4 with dynamic rope scaling")
        if len(self.sliding_windows) not in (0, self.num_hidden_layers):
            count = len(self.sliding_windows)
            raise ConfigError("layer_types", f"a list of {count}", f"one for each of {self.num_hidden_layers} layers")
        for window in self.sliding_windows:
            if window is not None:
                _check_range("sliding_window", window, (1, 1 << 30))

    @property
    def scale(self) -> float:
        """The factor that query · key is multiplied with."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def projected_embedding(self) -> bool:
        """Whether the embedding passes through project_in and project_out (OPT-350m)."""
        return self.embedding_size not in (None, self.hidden_size)

    @property
    def query_size(self) -> int:
        """The number of columns of the query projection."""
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

    def kv_bytes_per_token(self, element_size: int, scale_size: int = 0) -> int:
        """Bytes of keys and values that one token adds to the cache, with a scale for each head's key and value."""
        head = self.head_dim * element_size + scale_size
        return 2 * self.num_hidden_layers * self.num_key_value_heads * head


def _check_range(name: str, value: float, ends: tuple[float, float]) -> None:
    low, high = ends
    # NaN compares as false with everything.
    if not (low <= value <= high) or not math.isfinite(value):
        raise ConfigError(name, value, f"from {low:,} to {high:,}")
