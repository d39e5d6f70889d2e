"""The states of a sequence's recurrent layers, and the inputs of the rows that are not part of them yet."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from ipex_assist.executors.interface import check_rollback
from ipex_assist.models.spec import DecoderSpec


@dataclass
class LayerState:
    """Of one layer and sequence: the state after `settled` tokens, and the inputs of the last rows.

    state: (heads, key_dim, value_dim), None for zeros. inputs: what the input linear gave, (columns,) each, of the rows
    from position `first` on.
    """

    settled: int = 0
    confirmed: int = 0  # the tokens before it will stay
    state: torch.Tensor | None = None
    first: int = 0
    inputs: list[torch.Tensor] = field(default_factory=list)

    def truncate(self, length: int) -> None:
        """Forget the rows from position `length` on."""
        del self.inputs[max(0, length - self.first) :]
        self.confirmed = length

    def copy(self) -> LayerState:
        """One that changes by itself; tensors are never changed in place."""
        return LayerState(self.settled, self.confirmed, self.state, self.first, list(self.inputs))


class RecurrentStates:
    """The states of a sequence's recurrent layers."""

    def __init__(self, spec: DecoderSpec) -> None:
        self.layers = {i: LayerState() for i, layer in enumerate(spec.layers) if layer.recurrent is not None}

    @property
    def settled(self) -> int:
        """The fewest tokens that the sequence can be truncated to, but for 0."""
        return max((each.settled for each in self.layers.values()), default=0)

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on. Raises IpexAssistError where they are part of a state already."""
        check_rollback(length, self.settled)
        for index, each in self.layers.items():
            if length == 0:
                self.layers[index] = LayerState()
            else:
                each.truncate(length)

    def copy_from(self, other: RecurrentStates) -> None:
        """Hold what `other` holds."""
        self.layers = {index: each.copy() for index, each in other.layers.items()}
