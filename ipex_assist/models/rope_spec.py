"""Rotary positions of a model, as plain data: the base, and the rule by which a context is stretched."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from ipex_assist.models.config import ConfigError
from ipex_assist.models.ranges import check_range

RopeKind = Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope", "proportional"]

# The least and the largest that each number may be, and what each rule cannot do without.
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

    `scaling` holds the numbers of the rule under Hugging Face's names (`factor`, `low_freq_factor`, …), and the
    logarithms of what frequencies are multiplied with where a checkpoint has them (`frequency_logs`, Mistral Large 4).
    Raises ConfigError for a number out of ROPE_RANGES, and where the rule lacks one.
    """

    theta: float = 10000.0
    kind: RopeKind = "default"
    scaling: dict[str, Any] = field(default_factory=dict)
    backwards: bool = False  # by angles below zero

    def __post_init__(self) -> None:
        check_range("rope_theta", self.theta, ROPE_RANGES["rope_theta"])
        for name in ROPE_NEEDS[self.kind]:
            if self.scaling.get(name) is None:
                raise ConfigError(name, None, f"a number: {self.kind} rope scaling needs it")
        for name, value in self.scaling.items():
            if name in ROPE_RANGES and value is not None:
                check_range(name, value, ROPE_RANGES[name])
        if self.kind == "llama3" and self.scaling["high_freq_factor"] < self.scaling["low_freq_factor"]:
            low, high = self.scaling["low_freq_factor"], self.scaling["high_freq_factor"]
            raise ConfigError("high_freq_factor", high, f"{low:g} at least, as low_freq_factor is")
        if self.kind == "longrope":
            for name in ("short_factor", "long_factor"):
                for value in self.scaling[name]:
                    check_range(name, value, ROPE_RANGES["factor"])

    @property
    def by_length(self) -> bool:
        """Whether the angles of a row depend on the length of its prompt, too."""
        return self.kind in ("dynamic", "longrope")
