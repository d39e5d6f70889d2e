"""The bytes of one model by purpose, as a plan has them. Never imports torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelBytes:
    """weights: None where nobody knows. table: of them that of tokens' embeddings, which a copy of the same model on
    the same executor shares. `unit` tokens of keys and values take `unit_bytes`, up to a length of `context`.
    workspace: of passes. state_bytes: of the state of a text's recurrent layers.
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
