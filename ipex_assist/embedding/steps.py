"""What becomes of a pooled vector: linears, length 1, and the score of a head. Each vector alone, in a fixed order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ipex_assist.checkpoints import safetensors_file
from ipex_assist.embedding.recipe import NORMALIZE, DenseStep, Step
from ipex_assist.env.errors import IpexAssistError

Floats = NDArray[np.float32]

_erf = np.vectorize(math.erf, otypes=[np.float32])
_FUNCTIONS: dict[str, Callable[[Floats], Any]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, 0),
    "GELU": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "SiLU": lambda x: x / (1 + np.exp(-x)),
}


class Finisher(Protocol):
    """Makes of a pooled vector what is answered."""

    def __call__(self, vector: Floats) -> Floats:
        """A new vector, fp32."""
        ...


def normalized(vector: Floats) -> Floats:
    """The vector at length 1; one of zeros stays."""
    length = math.sqrt(float(np.square(vector, dtype=np.float64).sum()))
    return (vector / max(length, 1e-12)).astype(np.float32)


@dataclass(frozen=True)
class VectorLinear:
    """weight (out, in), bias (out,) or None, and a function of the result.

    The products are summed by numpy's own sums and no matrix library, whose order depends on its threads.
    """

    weight: Floats
    bias: Floats | None
    activation: str = "Identity"

    def __call__(self, vector: Floats) -> Floats:
        """See Finisher."""
        x = (self.weight * vector).sum(1, dtype=np.float32)
        x = x if self.bias is None else x + self.bias
        return np.asarray(_FUNCTIONS[self.activation](x), np.float32)


@dataclass(frozen=True)
class YesOrNo:
    """The probability of "yes" as the next token against "no" alone. rows: of both in lm_head, (2, hidden)."""

    rows: Floats

    def __call__(self, vector: Floats) -> Floats:
        """The probability, (1,)."""
        yes, no = (self.rows * vector).sum(1, dtype=np.float64)
        return np.array([_sigmoid(yes - no)], np.float32)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


@dataclass(frozen=True)
class Chain:
    """One step after the other."""

    parts: tuple[Finisher, ...]

    def __call__(self, vector: Floats) -> Floats:
        """See Finisher."""
        for part in self.parts:
            vector = part(vector)
        return vector


def chain_of(steps: Sequence[Step], pooled: int) -> tuple[Chain, int]:
    """The steps with their weights read, and the size of the vector they give. pooled: that of what enters.

    Raises IpexAssistError where weights are missing, or do not fit.
    """
    parts: list[Finisher] = []
    for step in steps:
        if step == NORMALIZE:
            parts.append(normalized)
            continue
        assert isinstance(step, DenseStep)
        if step.in_size != pooled:
            raise IpexAssistError(f"{step.folder} reads vectors of {step.in_size}, and there are some of {pooled}")
        parts.append(_linear(step))
        pooled = step.out_size
    return Chain(tuple(parts)), pooled


def _linear(step: DenseStep) -> VectorLinear:
    found = _tensors(step.folder)
    weight, bias = found.get("linear.weight"), found.get("linear.bias") if step.bias else None
    if weight is None or weight.shape != (step.out_size, step.in_size) or (step.bias and bias is None):
        raise IpexAssistError(f"{step.folder} lacks linear.weight or linear.bias of its config. Download it again.")
    return VectorLinear(weight, bias, step.activation)


def _tensors(folder: Path) -> dict[str, Floats]:
    safe, old = folder / "model.safetensors", folder / "pytorch_model.bin"
    if safe.is_file():
        tensors = safetensors_file.read_tensors(safetensors_file.read_header(safe).items())
    elif old.is_file():
        from ipex_assist.checkpoints import bin_file

        tensors = bin_file.read_tensors(old)
    else:
        raise IpexAssistError(f"{folder} has neither model.safetensors nor pytorch_model.bin. Download it again.")
    return {name: tensor.float().numpy() for name, tensor in tensors}
