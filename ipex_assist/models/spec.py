"""DecoderSpec: everything an executor must know about a decoder-only transformer, as plain data.

It says what the whole model has (vocabulary, embedding, positions, final norm, head) and what each of its layers has: a
LayerSpec, which is a mixer (`AttentionSpec` or `RecurrentSpec`), an MLP (`MlpSpec` or `Experts`) or none, their norms
and a multiplier. Layers may
differ in anything but the width of the residual stream and the kind of their norms: in heads, head_dim, window, rope,
and in whether they have experts. Families whose layers are alike say it once (layers.py). What a layer may have:

- **Norms** (RMS, or layer norm with or without a bias) stand before attention and MLP ("pre", Llama), after the
  residual addition ("post_residual", OPT-350m), after attention and MLP before they are added ("post", OLMo 2), or
  before and after ("sandwich", Gemma 2); with parallel residuals both read the same rows, through a norm each or one
  for both. The model may have a norm of the embedding and a final one. A norm that weights by 1 + w is folded when
  weights are packed (`Source.plus`), and so is a factor of the logits (`logit_multiplier`, into the final norm).
- **Queries and keys** may be normalised: each head by one weight (Qwen3), each by its own (Command R+), or all heads
  together (OLMo 2); before rotation, or each head after it (Hunyuan). Queries far into a text may grow (Ministral 3).
- **Positions**: rotary (of the whole head or its first `rotary_dim` values, by one of the model's `ropes`, or none in
  some layers), ALiBi's slopes, or a learned table that is added to the embedding. Rotation of neighbouring pairs
  (GPT-J, GLM-4, Cohere) is that of halves with the rows of query and key in another order (`Source.pairs`).
- **Attention** sees everything or a window; its scores may have a soft cap, and so may logits. Each query head may
  have a sink: a learned logit that takes part in the sum of its softmax, and has no value (gpt-oss). Attended values
  may be multiplied with the sigmoid of a gate (Qwen3-Next), before the output projection.
- **The MLP** is plain or gated, with one of ACTIVATIONS, or gpt-oss's clamped_swiglu of gate and up together, or xIELU,
  which has learned numbers and no gate (Apertus); or a row passes through some of many such, the layer's `Experts`.
- **Keys and values** may be another layer's: then the layer has queries alone (Gemma 4). Values may be what the key
  projection gives, before the key's norm and rotation, and may pass a norm without a weight.
- **Per-layer embeddings** (Gemma 3n and 4): a second table has a narrow row of each token for each layer. Beside a
  projection of the embedding it says how much of each of as many features of the residual stream is added after the
  layer's MLP.
- **Latent attention** keeps one narrow row a token for all heads in the place of keys and values (`LatentSpec`).
- **Multipliers** of the embedding, of what is added to the residual stream, of attention's scores and of logits.
- **Biases** of query, key and value; output; MLP; head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from ipex_assist.models.config import ConfigError
from ipex_assist.models.draft_head import HeadSpec

Norm = Literal["rms", "layer"]
NormPlace = Literal["pre", "post_residual", "post", "sandwich"]
RecurrentKind = Literal["gated_delta", "mamba2", "short_conv"]
HeadNorm = Literal["head", "each_head", "all_heads"]
Activation = Literal["silu", "relu", "gelu", "gelu_tanh", "relu2", "xielu", "clamped_swiglu"]
Scores = Literal["softmax", "sigmoid", "sparsemixer"]
RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]

# Hugging Face's names of activations (transformers.activations.ACT2FN) and the functions that they name.
ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python": "gelu",
    "gelu_accurate": "gelu_tanh",
}


# Activations that are not functions of one number alone.
NOT_ELEMENTWISE = ("xielu", "clamped_swiglu")
# Of clamped_swiglu: gate · sigmoid(SIGMOID_GAIN · gate) · (up + 1), with gate up to CLAMP and up within ±CLAMP.
CLAMP, SIGMOID_GAIN = 7.0, 1.702

# The least and the largest that each number may be, by Hugging Face's names. The upper ends are far beyond any model: a
# damaged config shall not ask for all memory.
RANGES: dict[str, tuple[float, float]] = {
    "vocab_size": (1, 1 << 24),
    "hidden_size": (1, 1 << 20),
    "num_hidden_layers": (1, 1000),
    "max_position_embeddings": (1, 1 << 30),
    "norm_eps": (1e-30, 0.1),
    "position_offset": (0, 1 << 10),
    "embedding_size": (1, 1 << 20),
    "embedding_multiplier": (1e-6, 1e6),
    "logit_multiplier": (1e-6, 1e6),
    "logit_cap": (1e-3, 1e6),
    "per_layer_size": (0, 1 << 14),
}
# The same of a layer's parts, whose own names are shorter.
ATTENTION_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "num_attention_heads": ("heads", (1, 4096)),
    "num_key_value_heads": ("kv_heads", (1, 4096)),
    "head_dim": ("head_dim", (1, 4096)),
    "attention_scale": ("scale", (1e-6, 1e6)),
    "rotary_dim": ("rotary_dim", (2, 4096)),
    "attention_cap": ("cap", (1e-3, 1e6)),
    "sliding_window": ("window", (1, 1 << 30)),
    "llama_4_scaling_beta": ("growth", (0, 1e3)),
    "original_max_position_embeddings": ("growth_step", (1, 1 << 30)),
}
LATENT_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "kv_lora_rank": ("rank", (1, 1 << 12)),
    "qk_rope_head_dim": ("rope_dim", (2, 1 << 12)),
    "qk_nope_head_dim": ("nope_dim", (1, 1 << 12)),
    "v_head_dim": ("value_dim", (1, 1 << 12)),
    "q_lora_rank": ("query_rank", (1, 1 << 20)),
}
RECURRENT_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "linear_num_value_heads": ("heads", (1, 4096)),
    "linear_num_key_heads": ("key_heads", (1, 4096)),
    "linear_key_head_dim": ("key_dim", (1, 1 << 20)),
    "linear_value_head_dim": ("value_dim", (1, 1 << 20)),
    "linear_conv_kernel_dim": ("conv_kernel", (1, 16)),
    "beta_scale": ("beta_scale", (1e-3, 1e3)),
    "norm_eps": ("norm_eps", (1e-30, 0.1)),
}
MLP_RANGES: dict[str, tuple[str, tuple[float, float]]] = {"intermediate_size": ("intermediate_size", (1, 1 << 22))}
EXPERT_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "num_experts": ("count", (1, 1 << 10)),
    "num_experts_per_tok": ("per_token", (1, 1 << 8)),
    "moe_intermediate_size": ("intermediate_size", (1, 1 << 22)),
    "shared_expert_intermediate_size": ("shared_size", (0, 1 << 22)),
    "n_group": ("groups", (1, 1 << 10)),
    "topk_group": ("groups_per_token", (1, 1 << 10)),
    "routed_scaling_factor": ("scaling", (1e-6, 1e6)),
    "moe_norm_min": ("least_sum", (0, 1)),
    "router_jitter_noise": ("jitter", (0, 1)),
}
LAYER_RANGES: dict[str, tuple[str, tuple[float, float]]] = {"residual_multiplier": ("residual_multiplier", (1e-6, 1e6))}
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
    "partial_rotary_factor": (0, 1),
}
ROPE_NEEDS: dict[RopeKind, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "factor", "original_max_position_embeddings"),
    "proportional": ("partial_rotary_factor", "factor"),
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
        check_range("rope_theta", self.theta, ROPE_RANGES["rope_theta"])
        for name in ROPE_NEEDS[self.kind]:
            if self.scaling.get(name) is None:
                raise ConfigError(name, None, f"a number: {self.kind} rope scaling needs it")
        for name, value in self.scaling.items():
            if name in ROPE_RANGES and value is not None:
                check_range(name, value, ROPE_RANGES[name])
        if self.kind == "llama3" and self.scaling["high_freq_factor"] <= self.scaling["low_freq_factor"]:
            low, high = self.scaling["low_freq_factor"], self.scaling["high_freq_factor"]
            raise ConfigError("high_freq_factor", high, f"larger than low_freq_factor, {low:g}")
        if self.kind == "longrope":
            for name in ("short_factor", "long_factor"):
                for value in self.scaling[name]:
                    check_range(name, value, ROPE_RANGES["factor"])

    @property
    def by_length(self) -> bool:
        """Whether the angles of a row depend on the length of its prompt, too."""
        return self.kind in ("dynamic", "longrope")


@dataclass(frozen=True)
class LatentSpec:
    """Multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1), in its absorbed form.

    A row gives a latent c (rank), after its norm, and a rotary key (rope_dim), which all heads share. Head h's key is
    W_UK c beside the rotary key, and its value W_UV c; so q · W_UK c = (W_UKᵀ q) · c, and with p the shares of the
    softmax Σ p W_UV c = W_UV Σ p c: attention runs over the latents themselves, as one KV head, and nothing else is
    kept. Queries are made of the layer's input, or of a normalised row of `query_rank` values in between.

    Raises ConfigError for a value out of LATENT_RANGES.
    """

    rank: int
    rope_dim: int
    nope_dim: int  # values of a head's query that are not rotated
    value_dim: int  # of each head
    query_rank: int | None = None
    norm_eps: float = 1e-6  # of the norms of the latent and of the query's row, whatever the model's other norms have

    def __post_init__(self) -> None:
        _check_ranges(self, LATENT_RANGES)

    @property
    def head_dim(self) -> int:
        """Values of the one key that is kept: first those that are rotated, then the latent."""
        return self.rope_dim + self.rank


@dataclass(frozen=True)
class AttentionSpec:
    """Softmax attention with grouped keys and values, or over latents.

    Raises ConfigError for a value out of ATTENTION_RANGES, and for values that cannot go together.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None  # how many of the latest positions a row may see; None is all of them
    rope: int | None = None  # which of the model's `ropes` rotates query and key; None: none does
    rotary_dim: int | None = None  # how many values of each head are rotated; head_dim where None
    alibi_slopes: tuple[float, ...] = ()  # one a head; empty: none
    qk_norm: HeadNorm | None = None
    norm_after_rope: bool = False  # that norm is of rotated heads
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False  # a logit a query head beside the scores of its softmax
    output_gate: bool = False  # attended values are multiplied with the sigmoid of a linear of the layer's input
    scale: float | None = None  # of query · key; head_dim ** -0.5 where None
    cap: float | None = None  # scores x become cap · tanh(x / cap)
    growth: float = 0.0  # queries at position p are multiplied with 1 + growth · log(1 + ⌊p / growth_step⌋)
    growth_step: int | None = None
    # The earlier layer, or layer of a draft head's target (HeadSpec "shared_kv"), whose keys and values it reads; None:
    # it has its own.
    kv_layer: int | None = None
    values_are_keys: bool = False  # values are what the key projection gives, before its norm and rotation
    value_norm: bool = False  # each head's value passes an RMS norm without a weight
    # Keys and queries are then of one KV head, head_dim and rotary_dim those of the latent and its rotary key.
    latent: LatentSpec | None = None

    def __post_init__(self) -> None:
        _check_ranges(self, ATTENTION_RANGES)
        if self.latent is not None:
            assert (self.kv_heads, self.head_dim, self.rotary_dim) == (1, self.latent.head_dim, self.latent.rope_dim)
            assert not any((self.sinks, self.output_gate, self.qk_norm, self.alibi_slopes)), "beside latents"
            assert not any((self.shares_kv, self.values_are_keys, self.value_norm)), "beside latents"
        assert not self.shares_kv or not any((self.values_are_keys, self.value_norm)), "values of another layer"
        assert not self.values_are_keys or self.qk_norm != "all_heads", "values before a norm of all keys"
        if self.heads % self.kv_heads:
            raise ConfigError("num_key_value_heads", self.kv_heads, f"a divisor of the {self.heads} heads")
        if self.rotary_size > self.head_dim:
            raise ConfigError("rotary_dim", self.rotary_size, f"{self.head_dim} at most, the width of a head")
        if self.alibi_slopes and len(self.alibi_slopes) != self.heads:
            raise ConfigError("alibi", f"{len(self.alibi_slopes)} slopes", f"{self.heads}, one a head")
        if self.growth and self.growth_step is None:
            raise ConfigError("original_max_position_embeddings", None, "given: queries grow by it")
        assert not (self.norm_after_rope and self.qk_norm == "all_heads"), "a norm of all heads after their rotation"

    @property
    def rotary_size(self) -> int:
        """How many values of a head a rope rotates, if the layer has one."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def score_scale(self) -> float:
        """The factor that query · key is multiplied with."""
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def shares_kv(self) -> bool:
        """Whether its keys and values are another layer's."""
        return self.kv_layer is not None

    @property
    def value_width(self) -> int:
        """Values of a KV head that are kept beside its key."""
        return self.head_dim if self.latent is None else self.latent.rank

    @property
    def output_size(self) -> int:
        """Columns of what the output projection takes."""
        return self.heads * (self.head_dim if self.latent is None else self.latent.value_dim)

    @property
    def group(self) -> int:
        """Query heads that share a key/value head."""
        return self.heads // self.kv_heads

    @property
    def query_size(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Columns of the key projection, and of the value projection."""
        return self.kv_heads * self.head_dim

    @property
    def qkv_size(self) -> int:
        """Columns of the projections of query, key, value and output gate; or of the query's row and the latent."""
        if self.latent is not None:
            return (self.latent.query_rank or 0) + self.latent.head_dim
        parts = 0 if self.shares_kv else 1 if self.values_are_keys else 2
        return (2 if self.output_gate else 1) * self.query_size + parts * self.key_value_size


@dataclass(frozen=True)
class RecurrentSpec:
    """A mixer that keeps a state of fixed size for each sequence instead of keys and values.

    Rows first pass a causal convolution over the last `conv_kernel` of them (each channel by itself), then, token by
    token and head by head, with the state S (key_dim, value_dim):

    - gated_delta (Gated DeltaNet, Yang et al. 2024, arXiv:2412.06464): S ← decay·S; S ← S + k ⊗ beta·(v - k·S);
      out = q·S, with q and k of unit length, decay = exp(-exp(A_log)·softplus(a + dt_bias)) and beta =
      beta_scale·sigmoid(b). A norm of each head follows, then silu of the output gate z.
    - mamba2 (Dao and Gu 2024, arXiv:2405.21060): S ← decay·S + B ⊗ dt·x; out = C·S + skip·x, with C, B and x in the
      places of q, k and v, and groups that share B and C as key heads. silu of the gate follows, then a norm of each of
      `norm_groups`.
    - short_conv (LFM2): no state beside the rows of the convolution: C · conv(B · x).

    Raises ConfigError for a value out of RECURRENT_RANGES, and for values that cannot go together.
    """

    kind: RecurrentKind
    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    conv_kernel: int
    conv_bias: bool = False
    input_bias: bool = False
    output_bias: bool = False
    norm_groups: int = 0  # mamba2: 0 where there is no norm
    step_limit: tuple[float, float] = (0.0, math.inf)  # mamba2: of dt
    beta_scale: float = 1.0  # gated_delta: of the sigmoid of b
    norm_eps: float | None = None  # of its norm; the model's where None

    def __post_init__(self) -> None:
        _check_kind("mixer", self.kind, RecurrentKind)
        _check_ranges(self, RECURRENT_RANGES)
        if self.heads % self.key_heads:
            raise ConfigError("linear_num_key_heads", self.key_heads, f"a divisor of the {self.heads} value heads")
        if self.norm_groups and self.value_size % self.norm_groups:
            raise ConfigError("n_groups", self.norm_groups, f"a divisor of {self.value_size}")
        low, high = self.step_limit
        if not 0 <= low <= high:
            raise ConfigError("time_step_limit", list(self.step_limit), "two numbers from 0 on, the lower one first")

    @property
    def scans(self) -> bool:
        """Whether it has a state beside the rows of its convolution."""
        return self.kind != "short_conv"

    @property
    def key_size(self) -> int:
        """Columns of the queries of a row, and of its keys."""
        return self.key_heads * self.key_dim

    @property
    def value_size(self) -> int:
        """Columns of the values of a row, and of what it gives."""
        return self.heads * self.value_dim

    @property
    def norm_size(self) -> int:
        """Elements of the weight of its norm; 0 where it has none."""
        return self.value_dim if self.kind == "gated_delta" else self.value_size if self.norm_groups else 0

    @property
    def state_bytes(self) -> int:
        """Of the state of one sequence, in fp32, without the last rows that are kept beside it."""
        return 4 * self.value_size * self.key_dim if self.scans else 0

    @property
    def input_parts(self) -> dict[str, int]:
        """What its input linear gives: our names of the parts, and their columns."""
        keys_values = {"q_in": self.key_size, "k_in": self.key_size, "v_in": self.value_size}
        if self.kind == "short_conv":
            return keys_values
        betas = {"b_in": self.heads} if self.kind == "gated_delta" else {}
        return {**keys_values, "a_in": self.heads, **betas, "z_in": self.value_size}

    @property
    def vectors(self) -> dict[str, int]:
        """Its weights that are no matrices: our names, and how many elements they have."""
        taps = self.conv_kernel
        found = {"v_conv": taps * self.value_size}
        if self.scans:
            found |= {"q_conv": taps * self.key_size, "k_conv": taps * self.key_size}
            found |= {"a_log": self.heads, "dt_bias": self.heads}
        if self.kind == "mamba2":
            found["skip"] = self.heads
        return {**found, "gated_norm": self.norm_size} if self.norm_size else found


@dataclass(frozen=True)
class MlpSpec:
    """A gated MLP, down(activation(gate(x)) · up(x)), or a plain one, down(activation(up(x))).

    Raises ConfigError for a value out of MLP_RANGES, and for an activation that it cannot have.
    """

    intermediate_size: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        _check_ranges(self, MLP_RANGES)
        _check_kind("activation", self.activation, Activation)
        if self.activation == "clamped_swiglu" and not self.gated:
            raise ConfigError("activation", self.activation, "another one in an MLP without a gate")
        if self.activation == "xielu" and self.gated:
            raise ConfigError("activation", self.activation, "another one in an MLP with a gate")


@dataclass(frozen=True)
class Experts:
    """Many MLPs, each of `intermediate_size`, in the place of one; a router chooses some of them for a row.

    The router's logits of a row, (count,), are computed in fp32. `scores` makes a score of each: their softmax over all
    experts, or a sigmoid of each. The `per_token` experts of the highest are the row's (the lowest of equals), weighted
    by their scores, which are divided by their sum where `normalised`, and multiplied by `scaling`.

    - `correction_bias`: a learned bias is added to the scores for the choice alone (DeepSeek-V3, arXiv:2412.19437,
      equation 16).
    - `groups`: experts are in so many groups of neighbours, and a row's are of the `groups_per_token` best. A group is
      as good as its best expert, or as the sum of its best two (`best_of_group`).
    - "sparsemixer" (Phi-3.5-MoE, arXiv:2409.12136): the two largest logits, each weighted by a softmax over those
      logits that are near it, as `jitter` says; for the second without the first.
    - `expert_scales`: weights are then multiplied with a learned number of their expert.

    Shared experts are every row's: one of `shared_size` columns, as wide as all of them together, weighted by 1, or by
    a sigmoid of its own logit. `own_norms` (Gemma 4, whose shared expert is its dense MLP): router, experts and shared
    expert read the residual stream through a norm each, and what experts and shared expert give passes a norm each
    before it is added; the layer's norm before its MLP is the shared expert's, that after it the sum's. Raises
    ConfigError for a value out of EXPERT_RANGES, and for values that cannot go together.
    """

    count: int
    per_token: int
    intermediate_size: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    normalised: bool = True
    router_bias: bool = False
    shared_size: int = 0  # intermediate_size of the shared expert, 0 where there is none
    shared_gate: bool = False
    scores: Scores = "softmax"
    correction_bias: bool = False
    groups: int = 1
    groups_per_token: int = 1
    best_of_group: int = 2  # experts by which a group is judged: 1 or 2
    scaling: float = 1.0
    added_to_sum: float = 0.0  # that scores are divided by
    least_sum: float = 0.0  # which is this at least
    jitter: float = 0.0
    expert_scales: bool = False
    own_norms: bool = False

    def __post_init__(self) -> None:
        _check_ranges(self, EXPERT_RANGES)
        _check_kind("activation", self.activation, Activation)
        if self.per_token > self.count:
            raise ConfigError("num_experts_per_tok", self.per_token, f"{self.count} at most, the number of experts")
        assert not self.own_norms or (self.shared_size and not self.shared_gate), "norms of a shared expert"
        if self.scores == "sparsemixer" and self.per_token != 2:
            raise ConfigError("num_experts_per_tok", self.per_token, "2, as many as sparsemixer chooses")
        self._check_groups()

    def _check_groups(self) -> None:
        each = self.count // self.groups
        if self.groups > 1 and (self.count % self.groups or each < self.best_of_group):
            raise ConfigError("n_group", self.groups, f"a divisor of the {self.count} experts, two a group at least")
        if self.groups_per_token > self.groups:
            raise ConfigError("topk_group", self.groups_per_token, f"{self.groups} at most, the number of groups")
        if self.per_token > each * self.groups_per_token:
            raise ConfigError(
                "num_experts_per_tok",
                self.per_token,
                f"{each * self.groups_per_token} at most, those of {self.groups_per_token} groups",
            )

    @property
    def each(self) -> MlpSpec:
        """One of them."""
        return MlpSpec(self.intermediate_size, self.activation, self.gated, self.bias)


@dataclass(frozen=True)
class LayerSpec:
    """One layer. Raises ConfigError for a value out of LAYER_RANGES, and for parts that cannot go together."""

    mixer: AttentionSpec | RecurrentSpec
    mlp: MlpSpec | Experts | None  # None: the layer ends with its mixer
    norm_place: NormPlace = "pre"
    parallel: bool = False  # attention and MLP read the same rows, and are added to them together
    shared_norm: bool = False  # of these, by one norm
    residual_multiplier: float = 1.0  # of what attention and MLP add
    scaled: bool = False  # the residual stream is multiplied with a learned number after the layer

    def __post_init__(self) -> None:
        _check_ranges(self, LAYER_RANGES)
        _check_kind("norm_place", self.norm_place, NormPlace)
        if self.experts is not None and self.parallel:
            raise ConfigError("num_experts", self.experts.count, "none in a layer whose MLP is parallel to attention")
        assert self.norm_place == "sandwich" or self.experts is None or not self.experts.own_norms, "norms of experts"
        if self.mlp is None and self.parallel:
            raise ConfigError("parallel", True, "false in a layer without an MLP")

    @property
    def attention(self) -> AttentionSpec:
        """Its mixer, where that is attention."""
        assert isinstance(self.mixer, AttentionSpec), "attention of a recurrent layer"
        return self.mixer

    @property
    def recurrent(self) -> RecurrentSpec | None:
        """Its mixer, where that is recurrent."""
        return self.mixer if isinstance(self.mixer, RecurrentSpec) else None

    @property
    def mixer_in_size(self) -> int:
        """Columns that the first linear of its mixer gives, without gaps."""
        if isinstance(self.mixer, RecurrentSpec):
            return sum(self.mixer.input_parts.values())
        return self.mixer.qkv_size

    @property
    def mixer_out_size(self) -> int:
        """Columns of what its mixer gives to its last linear."""
        return self.mixer.value_size if isinstance(self.mixer, RecurrentSpec) else self.mixer.output_size

    def mixer_weights(self, hidden: int) -> int:
        """Elements of the matrices of its mixer, for rows of `hidden` columns."""
        count = (self.mixer_in_size + self.mixer_out_size) * hidden
        latent = self.mixer.latent if isinstance(self.mixer, AttentionSpec) else None
        if latent is None:
            return count
        heads, query = self.attention.heads, (latent.query_rank or hidden) * (latent.nope_dim + latent.rope_dim)
        return count + heads * (query + latent.rank * (latent.nope_dim + latent.value_dim))

    @property
    def experts(self) -> Experts | None:
        """Its experts, if it has any in the place of an MLP."""
        return self.mlp if isinstance(self.mlp, Experts) else None

    @property
    def inner_size(self) -> int:
        """Columns between the linears of its MLP, or of each of its experts; 0 where it has none."""
        return 0 if self.mlp is None else self.mlp.intermediate_size

    @property
    def each_mlp(self) -> MlpSpec:
        """Its MLP, or what each of its experts is."""
        assert self.mlp is not None, "the MLP of a layer without one"
        return self.mlp.each if isinstance(self.mlp, Experts) else self.mlp


@dataclass(frozen=True)
class DecoderSpec:
    """One decoder-only transformer. Sizes are counts of elements; names are Hugging Face's.

    Raises ConfigError for a value out of RANGES, and for values that cannot go together.
    """

    model_type: str
    vocab_size: int
    hidden_size: int
    layers: tuple[LayerSpec, ...]
    max_position_embeddings: int
    norm: Norm = "rms"
    norm_eps: float = 1e-6
    norm_affine: bool = True
    norm_bias: bool = True  # of layer norms
    final_norm: bool = True
    embedding_norm: bool = False
    # Rules of rotary positions, of which layers have one each or none. The first says how long a sequence may be.
    ropes: tuple[Rope, ...] = ()
    learned_positions: bool = False  # a table that is part of the weights, read at position + offset
    position_offset: int = 0
    head_bias: bool = False
    logit_cap: float | None = None
    embedding_multiplier: float = 1.0
    logit_multiplier: float = 1.0  # folded into the final norm: by models/, where that is mapped
    tied_head: bool = False
    embedding_size: int | None = None  # where the token embedding is narrower or wider than hidden_size (OPT-350m)
    per_layer_size: int = 0  # values of a token for each layer in the table of per-layer embeddings; 0: there is none
    head: HeadSpec | None = None  # of a draft head: it reads hidden states of its target beside tokens

    def __post_init__(self) -> None:
        for name, ends in RANGES.items():
            if (value := getattr(self, name)) is not None:
                check_range(name, value, ends)
        _check_kind("norm", self.norm, Norm)
        for attention in self.attentions:
            self._check_rotary(attention)
        for number, layer in enumerate(self.layers if self.head is None else ()):
            if isinstance(layer.mixer, AttentionSpec) and layer.mixer.kv_layer is not None:
                self._check_kv_layer(number, layer.mixer, layer.mixer.kv_layer)
        if self.per_layer_size and any(layer.mlp is None or layer.parallel for layer in self.layers):
            raise ConfigError("per_layer_size", self.per_layer_size, "0 where a layer does not end with an MLP")
        if self.per_layer_size and any(layer.each_mlp.activation in NOT_ELEMENTWISE for layer in self.layers):
            raise ConfigError("per_layer_size", self.per_layer_size, f"0 with {' and '.join(NOT_ELEMENTWISE)}")

    def _check_kv_layer(self, number: int, attention: AttentionSpec, kv_layer: int) -> None:
        found = self.layers[kv_layer].mixer if 0 <= kv_layer < number else None
        if not isinstance(found, AttentionSpec) or found.shares_kv or found.latent is not None:
            raise ConfigError("kv_layer", kv_layer, f"a layer before {number} with keys and values of its own")
        if (found.kv_heads, found.head_dim) != (attention.kv_heads, attention.head_dim):
            raise ConfigError(
                "kv_layer", kv_layer, f"a layer with {attention.kv_heads} KV heads of {attention.head_dim}, as {number}"
            )

    def _check_rotary(self, attention: AttentionSpec) -> None:
        size, name = attention.rotary_size, "head_dim" if attention.rotary_dim is None else "rotary_dim"
        if attention.rope is not None and not 0 <= attention.rope < len(self.ropes):
            raise ConfigError("rope", attention.rope, f"one of the {len(self.ropes)} of the model")
        for rope in self.ropes:
            if size % 2:
                raise ConfigError(name, size, "even, because its halves are rotated against each other")
            if rope.kind == "dynamic" and size < 4:
                raise ConfigError(name, size, "at least 4 with dynamic rope scaling")
            for factors in ("short_factor", "long_factor") if rope.kind == "longrope" else ():
                count = len(rope.scaling[factors])
                if count != size // 2:
                    raise ConfigError(factors, f"a list of {count}", f"of {size // 2} numbers, half of what is rotated")

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def lm_head_rows(self) -> int:
        """The logits of a row: fewer than `vocab_size` where a draft head tells fewer tokens apart."""
        return (self.head.draft_vocab_size if self.head is not None else None) or self.vocab_size

    @cached_property
    def rotary_tables(self) -> tuple[tuple[int, int], ...]:
        """The tables of cos and sin that layers need: which of `ropes`, and how many values of a head it rotates."""
        return tuple(sorted({(each.rope, each.rotary_size) for each in self.attentions if each.rope is not None}))

    @property
    def rotary_width(self) -> int:
        """Values of all these tables at one position, where they lie side by side."""
        return sum(size for _, size in self.rotary_tables)

    def rotary_columns(self, attention: AttentionSpec) -> slice | None:
        """The columns among these that rotate a layer's heads; None where nothing does."""
        if attention.rope is None:
            return None
        place = self.rotary_tables.index((attention.rope, attention.rotary_size))
        first = sum(size for _, size in self.rotary_tables[:place])
        return slice(first, first + attention.rotary_size)

    @property
    def norms_biased(self) -> bool:
        """Whether norms add a bias."""
        return self.norm == "layer" and self.norm_affine and self.norm_bias

    @property
    def projected_embedding(self) -> bool:
        """Whether the embedding passes through project_in and project_out (OPT-350m)."""
        return self.embedding_size not in (None, self.hidden_size)

    @cached_property
    def attentions(self) -> tuple[AttentionSpec, ...]:
        """The kinds of attention that layers have, each once."""
        return tuple(dict.fromkeys(each.mixer for each in self.layers if isinstance(each.mixer, AttentionSpec)))

    @cached_property
    def recurrents(self) -> tuple[RecurrentSpec, ...]:
        """The kinds of recurrent mixers that layers have, each once; none in most models."""
        return tuple(dict.fromkeys(each.mixer for each in self.layers if isinstance(each.mixer, RecurrentSpec)))

    @cached_property
    def expert_layers(self) -> tuple[Experts, ...]:
        """The experts of each layer that has any."""
        return tuple(layer.experts for layer in self.layers if layer.experts is not None)

    @property
    def experts(self) -> Experts | None:
        """Those of the first such layer; None in a model without."""
        return self.expert_layers[0] if self.expert_layers else None

    @property
    def context_length(self) -> int:
        """Tokens a sequence can hold: dynamic and yarn positions reach beyond the length the model was trained at."""
        if not self.ropes or self.ropes[0].kind not in ("dynamic", "yarn"):
            return self.max_position_embeddings  # longrope's is the stretched length
        scaling = self.ropes[0].scaling
        trained = scaling.get("original_max_position_embeddings") or self.max_position_embeddings
        return max(self.max_position_embeddings, int(trained * scaling.get("factor", 1.0)))

    def context_for(self, prompt_tokens: int) -> int:
        """Tokens that a sequence can hold whose prompt has `prompt_tokens`.

        Longrope rotates all rows of a sequence one way up to the trained length and another way beyond, and what was
        computed the one way does not go on the other: a sequence that begins within that length ends there.
        """
        if self.ropes and self.ropes[0].kind == "longrope":
            trained = int(self.ropes[0].scaling["original_max_position_embeddings"])
            return min(trained, self.context_length) if prompt_tokens <= trained else self.context_length
        return self.context_length

    def kv_bytes_per_token(self, element_size: int, scale_size: int = 0) -> int:
        """Bytes of keys and values that one token adds to the cache, with a scale for each head's key and value.

        Layers that read those of another one add none.
        """
        attentions = (each.mixer for each in self.layers if isinstance(each.mixer, AttentionSpec))
        heads = ((each.kv_heads, each.head_dim + each.value_width) for each in attentions if not each.shares_kv)
        return sum(count * (width * element_size + 2 * scale_size) for count, width in heads)


def check_range(name: str, value: float, ends: tuple[float, float]) -> None:
    """Raise ConfigError for a value out of its range. NaN compares as false with everything."""
    low, high = ends
    if not (low <= value <= high) or not math.isfinite(value):
        raise ConfigError(name, value, f"from {low:,} to {high:,}")


def _check_ranges(spec: Any, ranges: dict[str, tuple[str, tuple[float, float]]]) -> None:
    for name, (ours, ends) in ranges.items():
        if (value := getattr(spec, ours)) is not None:
            check_range(name, value, ends)


def _check_kind(name: str, value: str, kinds: Any) -> None:
    if value not in get_args(kinds):
        raise ConfigError(name, value, f"one of {', '.join(get_args(kinds))}")
