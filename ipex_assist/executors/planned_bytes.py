"""The bytes of one model by purpose, as a plan has them. Never imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ModelBytes:
    """weights: None where nobody knows. table: of them that of tokens' embeddings, which a copy of the same model on
    the same executor shares. `unit` tokens of keys and values take `unit_bytes`, up to a length of `context`.
    workspace: of passes. state_bytes: of the state of a text.
    """

    weights: int | None
    table: int
    unit: int
    unit_bytes: int
    context: int
    workspace: int
    state_bytes: int = 0

    def kv(self, tokens: int) -> int:
        """Bytes of the keys and values of one text, and of its state."""
        return -(-min(tokens, self.context) // self.unit) * self.unit_bytes + self.state_bytes


def total_bytes(parts: Sequence[ModelBytes]) -> ModelBytes:
    """Of models that run one after the other, and whose texts are as long."""
    known = [each.weights for each in parts if each.weights is not None]
    return replace(
        parts[0],
        weights=sum(known) if len(known) == len(parts) else None,
        table=sum(each.table for each in parts),
        unit_bytes=sum(each.unit_bytes for each in parts),
        workspace=sum(each.workspace for each in parts),
        state_bytes=sum(each.state_bytes for each in parts),
    )
