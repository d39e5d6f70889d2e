"""Records what the linears of a model read: for each input column, the mean of its squares over a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ipex_assist.executors.torch.experts import ExpertLayer, Mlp
from ipex_assist.executors.torch.kernels import Linear
from ipex_assist.executors.torch.model import TorchModel

# Our weights that read what a linear of the executor reads, by its name.
_READERS = {
    "qkv": ("q_proj", "k_proj", "v_proj", "g_proj", "index_q_proj", "index_k_proj"),
    "o": ("o_proj",),
    "up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


@dataclass
class _Inputs:
    """Sums over rows."""

    squares: torch.Tensor | None = None
    rows: int = 0

    def recorded(self, linear: Linear) -> Linear:
        """The linear, whose inputs are counted here."""

        def run(x: torch.Tensor) -> torch.Tensor:
            sums = x.float().square().sum(0, dtype=torch.float64)
            self.squares = sums if self.squares is None else self.squares + sums
            self.rows += len(x)
            return linear(x)

        return run


class InputRecorder:
    """Counts inputs of a model's attention and MLPs while it runs. Recurrent and latent mixers are left out."""

    def __init__(self, model: TorchModel) -> None:
        self._inputs: dict[str, _Inputs] = {}
        for number, (layer, spec) in enumerate(zip(model.weights.layers, model.spec.layers, strict=True)):
            prefix = f"layers.{number}."
            if spec.recurrent is None and spec.attention.latent is None:
                layer.qkv = self._of(f"{prefix}qkv").recorded(layer.qkv)
                layer.o_proj = self._of(f"{prefix}o").recorded(layer.o_proj)
            if isinstance(layer.mlp, ExpertLayer):
                experts = enumerate(layer.mlp.experts)
                layer.mlp.experts = [self._mlp(f"{prefix}experts.{each}.", mlp) for each, mlp in experts]
                if layer.mlp.shared is not None:
                    layer.mlp.shared = self._mlp(f"{prefix}shared.", layer.mlp.shared)
            elif layer.mlp is not None:
                layer.mlp = self._mlp(prefix, layer.mlp)
        model.weights.lm_head = self._of("lm_head").recorded(model.weights.lm_head)

    def _of(self, name: str) -> _Inputs:
        return self._inputs.setdefault(name, _Inputs())

    def _mlp(self, prefix: str, mlp: Mlp) -> Mlp:
        return self._of(prefix + "up").recorded(mlp[0]), self._of(prefix + "down").recorded(mlp[1])

    def means(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Of our weights `names` that read what was recorded: float32 (columns,)."""
        found = {}
        for name in names:
            prefix, leaf = name.removesuffix(".weight").rpartition(".")[::2]
            group = next((group for group, leaves in _READERS.items() if leaf in leaves), leaf)
            inputs = self._inputs.get(f"{prefix}.{group}" if prefix else group)
            if inputs is not None and inputs.squares is not None and name.endswith(".weight"):
                found[name] = (inputs.squares / inputs.rows).float()
        return found
