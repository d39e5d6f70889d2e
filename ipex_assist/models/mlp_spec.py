"""The MLP of a layer, or the many of which a router chooses some for a row, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from ipex_assist.models.config import ConfigError
from ipex_assist.models.ranges import check_kind, check_ranges

Activation = Literal["silu", "relu", "gelu", "gelu_tanh", "relu2", "xielu", "clamped_swiglu"]
Scores = Literal["softmax", "sigmoid", "sparsemixer", "sqrt_softplus"]

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

# The least and the largest that each number may be, by Hugging Face's names, and our shorter ones.
MLP_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "intermediate_size": ("intermediate_size", (1, 1 << 22)),
    "swiglu_limits": ("limit", (1e-6, 1e6)),
    "activation_sparsity_pattern": ("sparsity", (0, 0.999999)),
}
EXPERT_RANGES: dict[str, tuple[str, tuple[float, float]]] = {
    "num_experts": ("count", (1, 1 << 10)),
    "num_experts_per_tok": ("per_token", (1, 1 << 8)),
    "zero_expert_num": ("identity", (0, 1 << 10)),
    "moe_intermediate_size": ("intermediate_size", (1, 1 << 22)),
    "shared_expert_intermediate_size": ("shared_size", (0, 1 << 22)),
    "n_group": ("groups", (1, 1 << 10)),
    "topk_group": ("groups_per_token", (1, 1 << 10)),
    "routed_scaling_factor": ("scaling", (1e-6, 1e6)),
    "moe_norm_min": ("least_sum", (0, 1)),
    "router_jitter_noise": ("jitter", (0, 1)),
    "swiglu_limits": ("limit", (1e-6, 1e6)),
    "swiglu_limits_shared": ("shared_limit", (1e-6, 1e6)),
}


@dataclass(frozen=True)
class MlpSpec:
    """A gated MLP, down(activation(gate(x)) · up(x)), or a plain one, down(activation(up(x))).

    limit: what activation(gate(x)) is at most, and up(x) within ± of it (Step 3.7); or what gate(x) is before its
    activation, where `limits_gates` (Hunyuan 4).
    sparsity: the share of gates that are to be 0 before their activation, were they normally distributed: they become
    what they are above the mean of the row's plus `deviations` standard deviations (Gemma 3n); 0: they stay.
    Raises ConfigError for a value out of MLP_RANGES, and for an activation that it cannot have.
    """

    intermediate_size: int
    activation: Activation = "silu"
    gated: bool = True
    bias: bool = False
    limit: float | None = None
    limits_gates: bool = False
    sparsity: float = 0.0

    def __post_init__(self) -> None:
        check_ranges(self, MLP_RANGES)
        assert not self.sparsity or (self.gated and self.limit is None), "sparse gates"
        if self.sparsity and self.activation in NOT_ELEMENTWISE:
            raise ConfigError("activation", self.activation, "one of a gate alone where gates are sparse")
        assert self.limit is None or (self.gated and self.activation not in NOT_ELEMENTWISE), "a limit of no gate"
        check_kind("activation", self.activation, Activation)
        if self.activation == "clamped_swiglu" and not self.gated:
            raise ConfigError("activation", self.activation, "another one in an MLP without a gate")
        if self.activation == "xielu" and self.gated:
            raise ConfigError("activation", self.activation, "another one in an MLP with a gate")

    @property
    def deviations(self) -> float:
        """Standard deviations above the mean that this share of normally distributed numbers is below."""
        return NormalDist().inv_cdf(self.sparsity) if self.sparsity else 0.0


@dataclass(frozen=True)
class Experts:
    """Many MLPs, each of `intermediate_size`, in the place of one; a router chooses some of them for a row.

    The router's logits of a row, (count,), are computed in fp32. `scores` makes a score of each: their softmax over all
    experts, or a sigmoid or the square root of the softplus of each. The `per_token` experts of the highest are the
    row's (the lowest of equals), weighted by their scores, which are divided by their sum where `normalised`, and
    multiplied by `scaling`.

    - `correction_bias`: a learned bias is added to the scores for the choice alone (DeepSeek-V3, arXiv:2412.19437,
      equation 16).
    - `groups`: experts are in so many groups of neighbours, and a row's are of the `groups_per_token` best. A group is
      as good as its best expert, or as the sum of its best two (`best_of_group`).
    - "sparsemixer" (Phi-3.5-MoE, arXiv:2409.12136): the two largest logits, each weighted by a softmax over those
      logits that are near it, as `jitter` says; for the second without the first.
    - `by_token`: which experts are a row's is in a table (vocabulary, per_token) by its token, and their weights are as
      ever (DeepSeek-V4's hash routing).
    - `expert_scales`: weights are then multiplied with a learned number of their expert.

    - `identity`: behind these are so many more, which give what they read and have no weights (LongCat-Flash,
      arXiv:2509.01322, section 2.1). The router chooses among all.

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
    scales_inputs: bool = False  # weights are of what experts read, not of what they give (Llama 4)
    identity: int = 0
    by_token: bool = False
    limit: float | None = None  # as of an MLP: of each, and of the shared expert
    shared_limit: float | None = None
    limits_gates: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, EXPERT_RANGES)
        check_kind("activation", self.activation, Activation)
        if self.per_token > self.count:
            raise ConfigError("num_experts_per_tok", self.per_token, f"{self.count} at most, the number of experts")
        plain = self.shared_size and not any((self.own_norms, self.expert_scales, self.scales_inputs, self.groups > 1))
        assert not self.identity or (plain and self.scores != "sparsemixer"), "experts that give what they read"
        chosen_by_scores = self.correction_bias or self.identity or self.groups > 1 or self.scores == "sparsemixer"
        assert not self.by_token or not chosen_by_scores, "experts that tokens name"
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
    def routed(self) -> int:
        """Those that the router chooses from."""
        return self.count + self.identity

    @property
    def each(self) -> MlpSpec:
        """One of them."""
        return MlpSpec(*(self.intermediate_size, self.activation, self.gated, self.bias), self.limit, self.limits_gates)

    @property
    def shared(self) -> MlpSpec:
        """The shared one."""
        return MlpSpec(
            *(self.shared_size, self.activation, self.gated, self.bias), self.shared_limit, self.limits_gates
        )
