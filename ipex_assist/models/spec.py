"""DecoderSpec: everything an executor must know about a decoder-only transformer, as plain data.

A layer is a short list of steps: into attention; query, key and value; attention; output; into the MLP; up; down.
What families do differently is a field each, and a step that a model does not have costs it nothing:

- **Norms** (RMS, or layer norm with or without a bias) stand before attention and MLP (Llama), behind the sum
  (OPT-350m), behind attention and MLP before they are added (OLMo 2), or before and behind (Gemma 2); with parallel
  residuals both read the same rows, through a norm each or one for both. There may be a norm of the embedding and a
  final one. A norm that weights by 1 + w is folded when weights are packed (`Source.plus`), and so is a factor of the
  logits (`logit_multiplier`, into the final norm).
- **Queries and keys** may be normalised: each head by one weight (Qwen3), each by its own (Command R+), or all heads
  together (OLMo 2).
- **Positions**: rotary (of the whole head or its first `rotary_dim` values; one table or two, chosen layer by layer, or
  none in some layers), a learned table, or ALiBi's slopes. Rotation of neighbouring pairs (GPT-J, GLM-4, Cohere) is
  that of halves with the rows of query and key in another order (`Source.pairs`).
- **Attention** sees everything or a window, layer by layer; its scores may have a soft cap, and so may logits. Each
  query head may have a sink: a learned logit that takes part in the sum of its softmax, and has no value (gpt-oss).
- **The MLP** is plain or gated, with one of ACTIVATIONS, or gpt-oss's clamped_swiglu of gate and up together; or a row
  passes through some of many such, its `Experts`.
- **Multipliers** of the embedding, of what is added to the residual stream, of attention's scores and of logits.
- **Biases** of query, key and value; output; MLP; head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from ipex_assist.models.config import ConfigError

Norm = Literal["rms", "layer"]
NormPlace = Literal["before", "sum", "behind", "around"]
HeadNorm = Literal["head", "each_head", "all_heads"]
Activation = Literal["silu", "relu", "gelu", "gelu_tanh", "clamped_swiglu"]
RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope"]

# Hugging Face's names of activations (transformers.activations.ACT2FN) and the four functions behind them.
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_tanh",
}


# Of clamped_swiglu: gate · sigmoid(SIGMOID_GAIN · gate) · (up + 1), with gate up to CLAMP and up within ±CLAMP.
CLAMP, SIGMOID_GAIN = 7.0, 1.702

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
    "rotary_dim": (2, 4096),
    "embedding_multiplier": (1e-6, 1e6),
    "residual_multiplier": (1e-6, 1e6),
    "logit_multiplier": (1e-6, 1e6),
    "attention_cap": (1e-3, 1e6),
    "logit_cap": (1e-3, 1e6),
}
# Of Experts, by the config's names.
EXPERT_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "num_experts": ("count", (1, 1 << 10)),
    "num_experts_per_tok": ("per_token", (1, 1 << 8)),
    "shared_expert_intermediate_size": ("shared_size", (0, 1 << 22)),
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
    "longrope": ("short_factor", "long_factor", "factor", "original_max_position_embeddings"),
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
        if self.kind == "longrope":
            for name in ("short_factor", "long_factor"):
                for value in self.scaling[name]:
                    _check_range(name, value, ROPE_RANGES["factor"])

    @property
    def by_length(self) -> bool:
        """Whether a row turns by the length of its prompt, too."""
        return self.kind in ("dynamic", "longrope")


@dataclass(frozen=True)
class Experts:
    """The MLPs of each layer, gated and of the spec's `intermediate_size`; a router chooses some of them for a row.

    The router's logits of a row, (count,), are computed in fp32. The `per_token` experts of the largest are the row's
    (the lowest of equals), weighted by their softmax over all experts, or over the chosen ones where `normalised`: then
    a row's weights sum to 1. A shared expert is every row's, weighted by 1, or by a sigmoid of its own logit.
    Raises ConfigError for a value out of EXPERT_RANGES, and for more experts a token than there are.
    """

    count: int
    per_token: int
    normalised: bool = True
    router_bias: bool = False
    shared_size: int = 0  # intermediate_size of the shared expert, 0 where there is none
    shared_gate: bool = False

    def __post_init__(self) -> None:
        for name, (ours, ends) in EXPERT_RANGES.items():
            _check_range(name, getattr(self, ours), ends)
        if self.per_token > self.count:
            raise ConfigError("num_experts_per_tok", self.per_token, f"{self.count} at most, the number of experts")


@dataclass(frozen=True)
class DecoderSpec:
    """One decoder-only transformer. Sizes are counts of elements; names are Hugging Face's.

    What its layers do is said at the head of this file.
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
    norm_place: NormPlace = "before"
    norm_affine: bool = True
    norm_bias: bool = True  # of layer norms
    final_norm: bool = True
    embedding_norm: bool = False
    parallel: bool = False  # attention and MLP read the same rows, and are added to them together
    shared_norm: bool = False  # of these, by one norm
    activation: Activation = "silu"
    gated: bool = True
    experts: Experts | None = None  # in every layer, in the place of its MLP
    # One of the three: rotary positions, ALiBi's slopes of the heads, or a learned table read at position + offset.
    rope: Rope | None = None
    alibi: tuple[float, ...] = ()
    position_offset: int = 0
    rotary_dim: int | None = None  # of each head, so many values turn; head_dim where None
    second_rope: Rope | None = None
    rotations: tuple[int | None, ...] = ()  # one a layer: 0 rope, 1 second_rope, None neither; empty: all rope
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    qk_norm: HeadNorm | None = None
    attention_scale: float | None = None  # head_dim ** -0.5 where None
    attention_cap: float | None = None  # scores x become cap · tanh(x / cap)
    attention_sinks: bool = False  # a logit a query head beside the scores of its softmax
    logit_cap: float | None = None
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0  # of what attention and MLP add
    logit_multiplier: float = 1.0  # folded into the final norm: by models/, where that is mapped
    tied_head: bool = False
    embedding_size: int | None = None  # where the token embedding is narrower or wider than hidden_size (OPT-350m)
    sliding_windows: tuple[int | None, ...] = ()  # one a layer; empty where every layer sees everything

    def __post_init__(self) -> None:
        for name, ends in RANGES.items():
            if (value := getattr(self, name)) is not None:
                _check_range(name, value, ends)
        for name, kinds in (("norm", Norm), ("activation", Activation), ("norm_place", NormPlace)):
            if getattr(self, name) not in get_args(kinds):
                raise ConfigError(name, getattr(self, name), f"one of {', '.join(get_args(kinds))}")
        if self.activation == "clamped_swiglu" and not self.gated:
            raise ConfigError("activation", self.activation, "another one in an MLP without a gate")
        heads = self.num_attention_heads
        if heads % self.num_key_value_heads:
            raise ConfigError("num_key_value_heads", self.num_key_value_heads, f"a divisor of the {heads} heads")
        if self.experts is not None and (self.parallel or not self.gated):
            raise ConfigError("num_experts", self.experts.count, "none in a model whose MLPs are plain or parallel")
        self._check_positions()
        for each in (self.sliding_windows, self.rotations):
            if len(each) not in (0, self.num_hidden_layers):
                raise ConfigError(
                    "layer_types", f"a list of {len(each)}", f"one for each of {self.num_hidden_layers} layers"
                )
        for window in self.sliding_windows:
            if window is not None:
                _check_range("sliding_window", window, (1, 1 << 30))

    def _check_positions(self) -> None:
        turned, name = (self.head_dim, "head_dim") if self.rotary_dim is None else (self.rotary_dim, "rotary_dim")
        if turned > self.head_dim:
            raise ConfigError(name, turned, f"{self.head_dim} at most, the width of a head")
        if self.alibi and len(self.alibi) != self.num_attention_heads:
            raise ConfigError("alibi", f"{len(self.alibi)} slopes", f"{self.num_attention_heads}, one a head")
        for rope in self.ropes:
            if turned % 2:
                raise ConfigError(name, turned, "even, because rotary positions turn its halves")
            if rope.kind == "dynamic" and turned < 4:
                raise ConfigError(name, turned, "at least 4 with dynamic rope scaling")
            for factors in ("short_factor", "long_factor") if rope.kind == "longrope" else ():
                count = len(rope.scaling[factors])
                if count != turned // 2:
                    raise ConfigError(factors, f"a list of {count}", f"of {turned // 2} numbers, half of what turns")

    @property
    def ropes(self) -> tuple[Rope, ...]:
        """The rules by which rows turn: none, one, or two."""
        return tuple(rope for rope in (self.rope, self.second_rope) if rope is not None)

    @property
    def rotary_size(self) -> int:
        """How many values of a head turn."""
        return 0 if self.rope is None else self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def learned_positions(self) -> bool:
        """Whether positions are a table that is part of the weights."""
        return self.rope is None and not self.alibi

    @property
    def norms_biased(self) -> bool:
        """Whether norms add a bias."""
        return self.norm == "layer" and self.norm_affine and self.norm_bias

    def rotation(self, layer: int) -> int | None:
        """Which of `ropes` turns the rows of `layer`, if any does."""
        if self.rope is None:
            return None
        return self.rotations[layer] if self.rotations else 0

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
            return self.max_position_embeddings  # longrope's is the stretched length
        trained = self.rope.scaling.get("original_max_position_embeddings") or self.max_position_embeddings
        return max(self.max_position_embeddings, int(trained * self.rope.scaling.get("factor", 1.0)))

    def context_for(self, prompt_tokens: int) -> int:
        """Tokens that a text can hold whose prompt has so many.

        Longrope turns all rows of a text one way up to the trained length and another way beyond, and what was computed
        the one way does not go on the other: a text that begins within that length ends there.
        """
        if self.rope is not None and self.rope.kind == "longrope":
            trained = int(self.rope.scaling["original_max_position_embeddings"])
            return min(trained, self.context_length) if prompt_tokens <= trained else self.context_length
        return self.context_length

    def kv_bytes_per_token(self, element_size: int, scale_size: int = 0) -> int:
        """Bytes of keys and values that one token adds to the cache, with a scale for each head's key and value."""
        head = self.head_dim * element_size + scale_size
        return 2 * self.num_hidden_layers * self.num_key_value_heads * head


def _check_range(name: str, value: float, ends: tuple[float, float]) -> None:
    low, high = ends
    # NaN compares as false with everything.
    if not (low <= value <= high) or not math.isfinite(value):
        raise ConfigError(name, value, f"from {low:,} to {high:,}")
